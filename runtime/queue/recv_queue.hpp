// The receive half of a QP: buffers are posted, and consumed in order.
//
// Thread rules: one thread, the owner, calls everything here.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "pollen/queue/completion_queue.hpp"
#include "pollen/queue/doorbell.hpp"
#include "pollen/queue/format.hpp"
#include "pollen/queue/work_request.hpp"

namespace pollen::queue {

struct RecvRing {
  std::byte* wqes = nullptr;
  std::uint32_t entries = 0;        // a power of two; 0: no receive queue
  std::uint32_t stride_bytes = 0;   // of one WQE; 16 × the largest gather list
  std::uint32_t* record = nullptr;  // the receive doorbell record
};

class RecvQueue {
 public:
  RecvQueue(const RecvRing& ring, CompletionQueue& cq);
  RecvQueue(const RecvQueue&) = delete;
  RecvQueue& operator=(const RecvQueue&) = delete;

  const RecvRing& ring() const noexcept { return ring_; }
  std::uint32_t max_sge() const noexcept { return ring_.stride_bytes / segment_bytes; }
  std::uint32_t outstanding() const noexcept { return producer_ - tail_; }
  std::uint32_t free() const noexcept { return ring_.entries - outstanding(); }
  std::uint64_t posted_total() const noexcept { return posted_total_; }

  // Puts a buffer on the ring; the device knows of it after publish(). False: the ring or the
  // completion queue is full, nothing was done.
  bool post(const Sge& buffer, std::uint64_t wr_id = 0) noexcept;
  bool post(std::span<const Sge> buffers, std::uint64_t wr_id = 0) noexcept;

  // Tells the device of all buffers posted so far: one store to the doorbell record.
  void publish() noexcept {
    if (published_ == producer_) return;
    published_ = producer_;
    wqes_before_record();
    store_record(ring_.record, producer_ & 0xffff);
  }

 private:
  friend class CompletionQueue;

  std::byte* reserve() noexcept;

  RecvRing ring_;
  std::uint32_t mask_;
  std::uint32_t producer_ = 0;
  std::uint32_t published_ = 0;
  std::uint32_t tail_ = 0;
  std::unique_ptr<std::uint64_t[]> wr_ids_;
  CompletionQueue* cq_;
  std::uint64_t posted_total_ = 0;
};

inline std::byte* RecvQueue::reserve() noexcept {
  if (producer_ - tail_ >= ring_.entries || cq_->free_slots_ == 0) [[unlikely]]
    return nullptr;
  --cq_->free_slots_;
  return ring_.wqes + (producer_ & mask_) * ring_.stride_bytes;
}

inline void put_receive_segment(std::byte* at, std::uint32_t bytes, std::uint32_t lkey,
                                const void* address) noexcept {
  store_u64(at, big_endian(bytes) | static_cast<std::uint64_t>(big_endian(lkey)) << 32);
  store_u64(at + 8, big_endian(reinterpret_cast<std::uint64_t>(address)));
}

inline bool RecvQueue::post(const Sge& buffer, std::uint64_t wr_id) noexcept {
  // A segment of zero bytes means two gigabytes to the device.
  if (buffer.bytes == 0) [[unlikely]]
    return post(std::span<const Sge>(), wr_id);
  std::byte* wqe = reserve();
  if (wqe == nullptr) return false;
  put_receive_segment(wqe, buffer.bytes, buffer.lkey, buffer.address);
  if (ring_.stride_bytes > segment_bytes) put_receive_segment(wqe + segment_bytes, 0, invalid_lkey, nullptr);
  wr_ids_[producer_ & mask_] = wr_id;
  ++producer_;
  ++posted_total_;
  return true;
}

inline bool RecvQueue::post(std::span<const Sge> buffers, std::uint64_t wr_id) noexcept {
  assert(buffers.size() <= max_sge());
  std::byte* wqe = reserve();
  if (wqe == nullptr) return false;
  std::byte* const end = wqe + ring_.stride_bytes;
  for (const Sge& buffer : buffers) {
    if (buffer.bytes == 0) continue;
    put_receive_segment(wqe, buffer.bytes, buffer.lkey, buffer.address);
    wqe += segment_bytes;
  }
  if (wqe != end) put_receive_segment(wqe, 0, invalid_lkey, nullptr);
  wr_ids_[producer_ & mask_] = wr_id;
  ++producer_;
  ++posted_total_;
  return true;
}

}  // namespace pollen::queue
