// Builds the WQE that a request must have become, with the helpers and structures of rdma-core's
// <infiniband/mlx5dv.h> and nothing of Pollen's.
#pragma once

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

class ExpectedWqe {
 public:
  // imm_be: as it is in memory, see mlx5dv_set_ctrl_seg.
  ExpectedWqe(std::uint8_t opcode, std::uint32_t qpn, std::uint8_t flags, std::uint32_t imm_be = 0)
      : opcode_(opcode), qpn_(qpn), flags_(flags), imm_be_(imm_be), bytes_(16) {}

  ExpectedWqe& remote(std::uint64_t address, std::uint32_t rkey) {
    mlx5_wqe_raddr_seg segment{};
    segment.raddr = htobe64(address);
    segment.rkey = htobe32(rkey);
    return append(segment);
  }
  ExpectedWqe& atomic(std::uint64_t swap_add, std::uint64_t compare) {
    mlx5_wqe_atomic_seg segment{};
    segment.swap_add = htobe64(swap_add);
    segment.compare = htobe64(compare);
    return append(segment);
  }
  ExpectedWqe& datagram(const mlx5_wqe_datagram_seg& segment) { return append(segment); }
  ExpectedWqe& data(std::uint32_t bytes, std::uint32_t lkey, const void* address) {
    mlx5_wqe_data_seg segment{};
    mlx5dv_set_data_seg(&segment, bytes, lkey, reinterpret_cast<std::uintptr_t>(address));
    return append(segment);
  }
  ExpectedWqe& inline_data(std::span<const std::byte> data) {
    mlx5_wqe_inl_data_seg segment{};
    segment.byte_count = htobe32(static_cast<std::uint32_t>(data.size()) | MLX5_INLINE_SEG);
    append(segment);
    bytes_.insert(bytes_.end(), data.begin(), data.end());
    return *this;
  }

  // Empty: `bytes` is this WQE at producer index `index`. Else where they differ. What pads the
  // last segment is the sender's to choose.
  std::string difference(std::span<const std::byte> bytes, std::uint32_t index) const {
    const std::size_t segments = (bytes_.size() + 15) / 16;
    if (bytes.size() != segments * 16)
      return std::to_string(bytes.size()) + " bytes instead of " + std::to_string(segments * 16);
    std::vector<std::byte> whole = bytes_;
    mlx5_wqe_ctrl_seg ctrl{};
    mlx5dv_set_ctrl_seg(&ctrl, static_cast<std::uint16_t>(index), opcode_, 0, qpn_, flags_,
                        static_cast<std::uint8_t>(segments), 0, imm_be_);
    std::memcpy(whole.data(), &ctrl, sizeof ctrl);
    for (std::size_t i = 0; i < whole.size(); ++i)
      if (whole[i] != bytes[i])
        return "byte " + std::to_string(i) + " is " + std::to_string(std::to_integer<int>(bytes[i])) +
               " instead of " + std::to_string(std::to_integer<int>(whole[i]));
    return {};
  }

 private:
  template <class Segment>
  ExpectedWqe& append(const Segment& segment) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof segment);
    std::memcpy(bytes_.data() + at, &segment, sizeof segment);
    return *this;
  }

  std::uint8_t opcode_;
  std::uint32_t qpn_;
  std::uint8_t flags_;
  std::uint32_t imm_be_;
  std::vector<std::byte> bytes_;
};
