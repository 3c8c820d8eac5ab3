// Reads WQEs out of a send ring and buffers out of a receive ring, as the NIC does.
//
// The rings belong to the program, which may have written anything into them: what is read is
// checked, and a WQE that makes no sense fails as on hardware.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "pollen/base/bytes.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::soft {

struct DataRef {
  std::uint64_t address;
  std::uint32_t bytes;
  std::uint32_t lkey;
};

inline DataRef read_data_segment(const std::byte* at) noexcept {
  queue::DataSegment segment;
  std::memcpy(&segment, at, sizeof segment);
  return {big_endian(segment.addr), big_endian(segment.byte_count), big_endian(segment.lkey)};
}

// A send WQE's segments, with the ring's end taken care of.
class WqeReader {
 public:
  WqeReader(const std::byte* ring, std::uint32_t blocks, std::uint32_t index) noexcept
      : ring_(ring),
        segments_in_ring_(blocks * queue::segments_per_block),
        first_((index & (blocks - 1)) * queue::segments_per_block) {
    std::memcpy(&ctrl_, segment(0), sizeof ctrl_);
  }

  const queue::CtrlSegment& ctrl() const noexcept { return ctrl_; }
  std::uint8_t opcode() const noexcept {
    return static_cast<std::uint8_t>(big_endian(ctrl_.opmod_idx_opcode));
  }
  std::uint8_t opmod() const noexcept {
    return static_cast<std::uint8_t>(big_endian(ctrl_.opmod_idx_opcode) >> 24);
  }
  std::uint32_t segments() const noexcept { return big_endian(ctrl_.qpn_ds) & 0x3f; }
  std::uint32_t qpn() const noexcept { return big_endian(ctrl_.qpn_ds) >> 8; }
  std::uint32_t blocks() const noexcept { return std::max(1U, queue::blocks_of_segments(segments())); }

  const std::byte* segment(std::uint32_t i) const noexcept {
    return ring_ + ((first_ + i) & (segments_in_ring_ - 1)) * queue::segment_bytes;
  }
  // Copies bytes that may run across the end of the ring.
  void copy(std::uint32_t from_segment, std::uint32_t offset, std::byte* to,
            std::uint32_t bytes) const noexcept {
    const std::uint32_t ring_bytes = segments_in_ring_ * queue::segment_bytes;
    std::uint32_t at = ((first_ + from_segment) * queue::segment_bytes + offset) & (ring_bytes - 1);
    while (bytes != 0) {
      const std::uint32_t part = std::min(bytes, ring_bytes - at);
      std::memcpy(to, ring_ + at, part);
      to += part;
      bytes -= part;
      at = 0;
    }
  }

 private:
  const std::byte* ring_;
  std::uint32_t segments_in_ring_;
  std::uint32_t first_;
  queue::CtrlSegment ctrl_;
};

}  // namespace pollen::soft
