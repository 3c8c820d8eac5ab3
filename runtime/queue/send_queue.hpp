// The send half of a QP: ring state and the bookkeeping that the hardware does not know.
//
// Space is counted in basic blocks, from the CQEs: a CQE names the first block of a completed
// WQE, and every WQE before it is done as well. The queue decides which WQEs are signalled:
// every `signal_every`-th, the tail of a burst on an idle queue, and, when the last signalled
// one has completed and others are behind it, a NOP of its own. So whatever a caller posts is
// retired without its doing anything.
//
// Thread rules: one thread, the owner, calls everything here. A burst must be rung or dropped
// before the completion queue is polled.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "pollen/queue/completion_queue.hpp"
#include "pollen/queue/doorbell.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::queue {

class SendBurst;

// What the driver hands over: where the ring is and how to ring for it.
struct SendRing {
  std::byte* wqes = nullptr;        // `blocks` × 64 bytes, 64-byte aligned
  std::uint32_t blocks = 0;         // a power of two, at most max_send_blocks
  std::uint32_t* record = nullptr;  // the send doorbell record
  Uar* uar = nullptr;               // used when hook.function is null
  DoorbellHook hook = {};
  std::uint32_t qpn = 0;
  std::uint32_t max_inline_bytes = 0;
  std::uint32_t max_sge = 0;
};

class SendQueue {
 public:
  // cq: receives this queue's CQEs; must outlive it.
  SendQueue(const SendRing& ring, CompletionQueue& cq, std::uint32_t signal_every);
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  const SendRing& ring() const noexcept { return ring_; }

  // Requests posted and not yet retired.
  std::uint32_t outstanding() const noexcept { return posted_ - retired_; }
  std::uint32_t free_blocks() const noexcept { return ring_.blocks - (producer_ - tail_); }
  std::uint64_t posted_total() const noexcept { return retired_total_ + outstanding(); }
  std::uint64_t doorbells() const noexcept { return doorbells_; }
  std::uint64_t bytes_posted() const noexcept { return bytes_posted_; }

  // The device reported an error: nothing can be posted until the QP is connected again.
  bool failed() const noexcept { return failed_; }

  // Opens a burst; see send_burst.hpp.
  SendBurst burst() noexcept;

  // Rings for WQEs that a burst left to be rung later (SendBurst::defer). No-op without any.
  void ring_doorbell() noexcept {
    if (rung_ == producer_) return;
    const bool due = posted_ - signalled_sequence_ >= signal_every_;
    if (producer_ != signalled_end_ && (due || tail_ == signalled_end_)) signal(last_, producer_, posted_);
    wqes_before_record();
    store_record(ring_.record, producer_ & 0xffff);
    ++doorbells_;
    const bool lone = posted_ - rung_posted_ == 1;
    rung_posted_ = posted_;
    const std::uint32_t blocks = producer_ - rung_;
    rung_ = producer_;
    if (ring_.hook.function != nullptr) {
      ring_.hook.function(ring_.hook.context, last_);
    } else if (lone && blocks * block_bytes <= ring_.uar->half_bytes && !wraps(last_, blocks)) {
      ring_blue_flame(*ring_.uar, last_, blocks);
    } else {
      ring_register(*ring_.uar, last_);
    }
  }

 private:
  friend class SendBurst;
  friend class CompletionQueue;

  // Of a signalled WQE, by its first block: what its CQE retires. No other WQE completes on its
  // own, but for an error.
  struct Mark {
    std::uint32_t end;       // producer index behind the WQE
    std::uint32_t sequence;  // requests posted up to and with this one
  };

  std::uint32_t block_of(const CtrlSegment* wqe) const noexcept {
    return static_cast<std::uint32_t>(reinterpret_cast<const std::byte*>(wqe) - ring_.wqes) / block_bytes;
  }
  bool wraps(const CtrlSegment* wqe, std::uint32_t blocks) const noexcept {
    return reinterpret_cast<const std::byte*>(wqe) + blocks * block_bytes >
           ring_.wqes + ring_.blocks * block_bytes;
  }
  CtrlSegment* wqe_at(std::uint32_t index) const noexcept {
    return reinterpret_cast<CtrlSegment*>(ring_.wqes + (index & mask_) * block_bytes);
  }

  // The last WQE before `end` gets a CQE.
  void signal(CtrlSegment* wqe, std::uint32_t end, std::uint32_t sequence) noexcept {
    wqe->fm_ce_se |= ctrl_signal;
    marks_[block_of(wqe)] = {end, sequence};
    signalled_end_ = end;
    signalled_sequence_ = sequence;
  }

  // Every WQE up to the marked one is done. Returns how many requests that retires.
  std::uint32_t retire(const Mark& mark) noexcept {
    const std::uint32_t count = mark.sequence - retired_;
    retired_ = mark.sequence;
    retired_total_ += count;
    tail_ = mark.end;
    return count;
  }
  bool tail_is_unsignalled() const noexcept { return tail_ == signalled_end_ && producer_ != tail_; }

  // For a burst with `posted` requests so far, the last of them at `last`, that wants `blocks`
  // more: how many it may take before asking again. 0: none, as the ring or the completion queue
  // is full or the queue has failed. Signals `last` when one is due. A request takes a block at
  // least, so a number of blocks is a bound on requests too. As many slots of the completion queue
  // are held for the burst from then on, so that no other queue is promised them before it is rung.
  std::uint32_t room_for(CtrlSegment* last, std::uint32_t producer, std::uint32_t posted,
                         std::uint32_t blocks) noexcept;

  // Posts the queue's own NOP, signalled, behind requests that nothing else would retire. At
  // most one is under way at a time, it is no request of the caller's and counts as none.
  void close_tail() noexcept;

  // The WQE whose first block is `wqe_counter` failed or was flushed; those before it succeeded.
  // Returns how many requests that retires: 0 for the queue's own NOP.
  std::uint32_t retire_failed(std::uint16_t wqe_counter) noexcept;

  // Hot: read by every burst.
  SendRing ring_;
  std::uint32_t mask_;
  std::uint32_t producer_ = 0;  // in blocks; free-running
  std::uint32_t tail_ = 0;      // in blocks; what the device is done with
  std::uint32_t posted_ = 0;    // in requests; free-running
  std::uint32_t retired_ = 0;   // in requests
  std::uint32_t signalled_end_ = 0;
  std::uint32_t signalled_sequence_ = 0;
  std::uint32_t signal_every_;
  std::uint32_t own_nop_ = ~0U;    // producer index of the queue's own NOP
  std::uint32_t rung_ = 0;         // producer index of the last doorbell
  std::uint32_t rung_posted_ = 0;  // requests at the last doorbell
  CtrlSegment* last_ = nullptr;    // the last WQE before producer_
  std::uint32_t held_ = 0;         // slots of the completion queue taken for the burst that is open
  bool failed_ = false;
  std::unique_ptr<std::uint64_t[]> wr_ids_;  // by a WQE's first block
  std::unique_ptr<Mark[]> marks_;
  CompletionQueue* cq_;

  std::uint64_t retired_total_ = 0;
  std::uint64_t doorbells_ = 0;
  std::uint64_t bytes_posted_ = 0;
};

}  // namespace pollen::queue
