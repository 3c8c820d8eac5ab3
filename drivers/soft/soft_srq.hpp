// A shared receive queue of the software NIC: buffers that several QPs take from. It lies in memory
// of the program's, and belongs to the engine's thread.
//
// Its WQEs form a list, as on mlx5: each begins with a segment that names the next one's index. The
// doorbell record counts what was posted. A buffer that was taken is the QP's until its completion,
// which tells the index; the program then hangs it in again at the end of the list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pollen/base/bytes.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::soft {

class SoftSrq {
 public:
  // entries: a power of two; stride_bytes: of one WQE, with its first segment.
  SoftSrq(std::uint32_t pd, const std::byte* wqes, std::uint32_t entries, std::uint32_t stride_bytes,
          const std::uint32_t* record) noexcept
      : pd_(pd), wqes_(wqes), entries_(entries), stride_bytes_(stride_bytes), record_(record) {}

  std::uint32_t pd() const noexcept { return pd_; }
  std::uint32_t available() const noexcept {
    return static_cast<std::uint16_t>(big_endian(__atomic_load_n(record_, __ATOMIC_ACQUIRE)) - taken_);
  }
  // The index of the next buffer, which is the caller's from now on. Needs available().
  std::uint16_t take() noexcept {
    const auto index = static_cast<std::uint16_t>(next_);
    mlx5_wqe_srq_next_seg segment;
    std::memcpy(&segment, wqe(index), sizeof segment);
    next_ = big_endian(segment.next_wqe_index) & (entries_ - 1);
    ++taken_;
    return index;
  }
  const std::byte* segments(std::uint16_t index) const noexcept { return wqe(index) + queue::segment_bytes; }
  std::uint32_t segment_count() const noexcept { return stride_bytes_ / queue::segment_bytes - 1; }

  // Tell once when fewer are left than this; 0: don't.
  std::uint32_t limit = 0;

 private:
  const std::byte* wqe(std::uint32_t index) const noexcept {
    return wqes_ + std::size_t{index & (entries_ - 1)} * stride_bytes_;
  }

  std::uint32_t pd_;
  const std::byte* wqes_;
  std::uint32_t entries_;
  std::uint32_t stride_bytes_;
  const std::uint32_t* record_;
  std::uint32_t next_ = 0;
  std::uint16_t taken_ = 0;
};

}  // namespace pollen::soft
