// A completion queue: reads CQEs that a driver writes, and returns the room they stood for to
// the send and receive queues.
//
// Slots are accounted: every posted request, signalled or not, holds one until it is retired,
// since a flushed QP yields a CQE for each. The device therefore never finds the queue full;
// an overrun would break every QP on it.
//
// Thread rules: one thread, the owner, calls everything here and owns all attached queues.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pollen/queue/barrier.hpp"
#include "pollen/queue/completion.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::queue {

class RecvQueue;
class SendQueue;

struct CqRing {
  std::byte* cqes = nullptr;        // `entries` × 64 bytes
  std::uint32_t entries = 0;        // a power of two
  std::uint32_t* record = nullptr;  // the consumer index record
};

class CompletionQueue {
 public:
  explicit CompletionQueue(const CqRing& ring);
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  const CqRing& ring() const noexcept { return ring_; }
  std::uint32_t entries() const noexcept { return ring_.entries; }
  std::uint32_t free_slots() const noexcept { return free_slots_; }

  // CQEs of `qpn` are looked up in these queues; either may be null. Throws Error when the queue
  // is too small for one more QP.
  void attach(std::uint32_t qpn, SendQueue* sq, RecvQueue* rq);
  // The QP must be drained: see purge(). What it still holds is given back.
  void detach(std::uint32_t qpn) noexcept;

  // Takes up to `max` completions; never waits. Several in one call share the bookkeeping.
  std::uint32_t poll(Completion* out, std::uint32_t max) noexcept;

  // Retires the CQEs of one QP that are in the ring, leaving all others for poll(). For a QP that
  // is about to be destroyed. Returns their number.
  std::uint32_t purge(std::uint32_t qpn) noexcept;

  // True when poll() would find a CQE.
  bool ready() const noexcept { return ready_at(consumer_); }

  std::uint64_t cqes_total() const noexcept { return consumer_; }

 private:
  friend class SendBurst;
  friend class SendQueue;
  friend class RecvQueue;

  struct Entry {
    std::uint32_t qpn = 0;
    SendQueue* sq = nullptr;
    RecvQueue* rq = nullptr;
  };

  // Slots that a queue held are given back, and others taken instead.
  void exchange(std::uint32_t given, std::uint32_t taken) noexcept { free_slots_ += given - taken; }
  Entry* find(std::uint32_t qpn) noexcept;
  bool ready_at(std::uint32_t index) const noexcept;
  Cqe* cqe_at(std::uint32_t index) const noexcept {
    return reinterpret_cast<Cqe*>(ring_.cqes + (index & mask_) * cqe_bytes);
  }
  // The owner bit that a fresh CQE has on this lap of the ring.
  std::uint8_t owner_at(std::uint32_t index) const noexcept {
    return (index & ring_.entries) != 0 ? cqe_owner : 0;
  }
  // The run at the head of the ring of successful sends with the QP and opcode of the last one.
  std::uint32_t take_sends(Completion* out, std::uint32_t max) noexcept;
  // The same of receives: the QP is that of the last CQE, the opcode that of the first.
  std::uint32_t take_receives(Completion* out, std::uint32_t max) noexcept;
  // Any one CQE. False: the CQE is not the caller's business.
  bool take(const Cqe& cqe, Completion& out) noexcept;
  bool take_receive(const Cqe& cqe, std::uint8_t opcode, Completion& out) noexcept;

  CqRing ring_;
  std::uint32_t mask_;
  std::uint32_t consumer_ = 0;  // free-running
  std::uint32_t free_slots_;
  std::uint32_t attached_ = 0;
  Entry recent_;                      // of the last CQE: most bursts stay on one QP
  std::uint32_t recent_sop_qpn_ = 0;  // the field of its last successful send, or 0
  std::vector<Entry> table_;          // open addressing, a power of two, at most half full
};

}  // namespace pollen::queue
