// Queues in ordinary memory whose device is off: what posting and polling cost by themselves. The
// UAR is an ordinary page, so that a doorbell costs its instructions and fences but no PCIe write.
//
// Thread rules: one thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "pollen/base/bytes.hpp"
#include "pollen/queue/completion_queue.hpp"
#include "pollen/queue/recv_queue.hpp"
#include "pollen/queue/send_burst.hpp"

namespace perf {

using namespace pollen::queue;

inline constexpr std::uint32_t message_bytes = 64;
inline constexpr std::uint32_t burst = 32;  // requests per doorbell, and per signalled one
inline constexpr std::uint32_t poll_batch = 16;
inline constexpr std::uint32_t ring_blocks = 512;  // 32 KiB: first-level cache, as in a busy loop
inline constexpr std::uint32_t qpn = 0x77;

// A round: `count` operations in bursts of `per_burst`. False: one of them had no room.
template <class Burst>
bool in_bursts(std::uint32_t count, std::uint32_t per_burst, Burst run_burst) {
  for (std::uint32_t done = 0; done < count; done += per_burst)
    if (!run_burst(per_burst)) return false;
  return true;
}

struct Pages {
  explicit Pages(std::size_t size) : bytes(static_cast<std::byte*>(::operator new(size, alignment))) {
    std::memset(bytes, 0, size);
  }
  ~Pages() { ::operator delete(bytes, alignment); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  static constexpr std::align_val_t alignment{4096};
  std::byte* bytes;
};

class QuietDevice {
 public:
  explicit QuietDevice(std::uint32_t signal_every)
      : cqes_(entries * cqe_bytes),
        wqes_(ring_blocks * block_bytes),
        receives_(ring_blocks * segment_bytes),
        uar_page_(4096),
        cq(cq_ring()),
        sq(send_ring(), cq, signal_every),
        rq(recv_ring(), cq) {
    cq.attach(qpn, &sq, &rq);
  }

  // Writes the CQEs of all that was posted since the last call.
  void complete_sends() noexcept {
    const auto end = static_cast<std::uint16_t>(pollen::big_endian(send_record_));
    while (taken_ != end) {
      const auto& wqe =
          *reinterpret_cast<const CtrlSegment*>(wqes_.bytes + (taken_ & (ring_blocks - 1)) * block_bytes);
      if ((wqe.fm_ce_se & ctrl_signal) != 0) {
        Cqe& cqe = next();
        cqe.sop_drop_qpn = pollen::big_endian(pollen::big_endian(wqe.opmod_idx_opcode) << 24 | qpn);
        cqe.wqe_counter = pollen::big_endian(taken_);
        publish(cqe, MLX5_CQE_REQ);
      }
      taken_ = static_cast<std::uint16_t>(taken_ + blocks_of_segments(pollen::big_endian(wqe.qpn_ds) & 0x3f));
    }
  }
  void complete_receives(std::uint32_t count) noexcept {
    for (; count != 0; --count) {
      Cqe& cqe = next();
      cqe.sop_drop_qpn = pollen::big_endian(qpn);
      cqe.byte_cnt = pollen::big_endian(message_bytes);
      publish(cqe, MLX5_CQE_RESP_SEND);
    }
  }
  // A ring full of requests, each with its CQE to be polled. Takes a queue that signals every one.
  void post_and_complete_sends() noexcept {
    {
      SendBurst requests = sq.burst();
      while (requests.write({uar_page_.bytes, message_bytes, 5}, {0x1000, 6})) {
      }
    }
    complete_sends();
  }
  void post_and_complete_receives() noexcept {
    while (rq.post({uar_page_.bytes, message_bytes, 5})) {
    }
    rq.publish();
    complete_receives(rq.outstanding());
  }
  // Everything that is outstanding is done and polled.
  void drain() noexcept {
    Completion out[poll_batch];
    complete_receives(rq.outstanding());
    do complete_sends();
    while (cq.poll(out, poll_batch) != 0 || sq.outstanding() != 0);
  }

 private:
  static constexpr std::uint32_t entries = 4 * ring_blocks;

  CqRing cq_ring() {
    for (std::uint32_t i = 0; i < entries; ++i)
      cqes_.bytes[i * cqe_bytes + cqe_bytes - 1] = std::byte{cqe_never_written};
    return {.cqes = cqes_.bytes, .entries = entries, .record = &cq_record_};
  }
  SendRing send_ring() {
    uar_.registers = uar_page_.bytes;
    uar_.half_bytes = 256;
    return {.wqes = wqes_.bytes,
            .blocks = ring_blocks,
            .record = &send_record_,
            .uar = &uar_,
            .hook = {},
            .qpn = qpn,
            .max_inline_bytes = 220,
            .max_sge = 4};
  }
  RecvRing recv_ring() {
    return {.wqes = receives_.bytes,
            .entries = ring_blocks,
            .stride_bytes = segment_bytes,
            .record = &recv_record_};
  }
  Cqe& next() noexcept {
    return *reinterpret_cast<Cqe*>(cqes_.bytes + (produced_ & (entries - 1)) * cqe_bytes);
  }
  void publish(Cqe& cqe, unsigned opcode) noexcept {
    cqe.op_own = static_cast<std::uint8_t>(opcode << 4 | ((produced_ & entries) != 0 ? cqe_owner : 0U));
    ++produced_;
  }

  Pages cqes_;
  Pages wqes_;
  Pages receives_;
  Pages uar_page_;
  Uar uar_;
  std::uint32_t cq_record_ = 0;
  std::uint32_t send_record_ = 0;
  std::uint32_t recv_record_ = 0;
  std::uint32_t produced_ = 0;
  std::uint16_t taken_ = 0;

 public:
  CompletionQueue cq;
  SendQueue sq;
  RecvQueue rq;
};

}  // namespace perf
