// A queue pair of the software NIC: what the requester (requester.cpp) and the responder
// (responder.cpp) know of one connection. It belongs to its engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/soft/link.hpp"
#include "pollen/drivers/soft/packet.hpp"
#include "pollen/drivers/soft/soft_cq.hpp"
#include "pollen/drivers/soft/soft_srq.hpp"
#include "pollen/drivers/soft/wqe.hpp"

namespace pollen::soft {

class Engine;

// A send WQE under way: sent in part or whole, not yet acknowledged.
struct PendingWqe {
  std::uint32_t index;  // of its first block; free-running
  std::uint32_t first_psn;
  std::uint32_t packets;  // PSNs that it takes; for READ those of the response
  std::uint32_t bytes;
  std::uint32_t emitted;    // packets sent; for READ and atomics 1 when the request is out
  std::uint32_t received;   // READ: response packets that have come
  std::uint8_t opcode;      // MLX5_OPCODE_…
  std::uint8_t first_data;  // segment at which the data begins
  std::uint8_t segments;
  bool signalled;
  bool solicited;
  bool fence;
  bool is_inline;
  bool done;  // READ, atomic: the response is complete
  std::uint32_t rkey;
  std::uint64_t remote;
  DataRef single;  // the gather list when it has one entry

  bool is_read_or_atomic() const noexcept { return opcode == MLX5_OPCODE_RDMA_READ || is_atomic(); }
  bool is_atomic() const noexcept {
    return opcode == MLX5_OPCODE_ATOMIC_CS || opcode == MLX5_OPCODE_ATOMIC_FA;
  }
  // Request packets: what the sender has to put on the wire.
  std::uint32_t request_packets() const noexcept { return is_read_or_atomic() ? 1 : packets; }
  std::uint32_t last_psn() const noexcept { return (first_psn + packets - 1) & psn_mask; }
};

// A READ or atomic that the responder owes an answer, or has answered and may be asked again.
struct ResponseJob {
  std::uint32_t psn;  // of the first response packet
  std::uint32_t packets;
  std::uint32_t sent;
  std::uint32_t rkey;
  std::uint64_t address;
  std::uint32_t bytes;
  bool is_atomic;
  std::uint64_t original;  // atomic: the value before
  bool repeat = false;     // asked for again: not one of the reads_in
};

// What an atomic returned, for when it is asked again: it must not be executed twice.
struct AtomicAnswer {
  std::uint32_t psn;
  std::uint64_t original;
};

// The message that is being received.
struct Inbound {
  enum class Kind : std::uint8_t { none, send, write };
  Kind kind = Kind::none;
  std::uint32_t bytes = 0;     // received so far
  std::uint32_t expected = 0;  // write: the length that RETH named
  std::uint32_t rkey = 0;      // write
  std::uint64_t address = 0;   // write
};

struct Requester {
  std::vector<PendingWqe> ring;  // a power of two; indices below are free-running
  std::uint32_t head = 0;        // the oldest one that is not acknowledged
  std::uint32_t tail = 0;        // behind the newest
  std::uint32_t cursor = 0;      // the one to send from
  std::uint32_t next_block = 0;  // the ring's next WQE, free-running
  std::uint32_t doorbell = 0;    // the producer index that the doorbell covered
  std::uint32_t next_psn = 0;    // of the next new WQE
  std::uint32_t una_psn = 0;     // the oldest unacknowledged
  std::uint32_t reads_out = 0;   // READs and atomics sent and not answered
  std::uint8_t retries_left = 0;
  std::uint8_t rnr_left = 0;
  std::uint8_t bad_wqe = 0;  // syndrome that the WQE at next_block fails with, in its turn
  std::uint8_t bad_wqe_vendor = 0;
  bool resent_for_gap = false;    // one resend per lost response, until something arrives
  std::uint64_t deadline_ns = 0;  // of the retransmission timer; 0: not running
  std::uint64_t rnr_until_ns = 0;

  PendingWqe& at(std::uint32_t i) noexcept { return ring[i & (ring.size() - 1)]; }
  bool has_unsent() const noexcept { return cursor != tail || next_block != doorbell; }
};

struct Responder {
  std::uint32_t expected_psn = 0;
  std::uint32_t msn = 0;
  Inbound inbound;
  std::uint32_t head = 0;        // receive ring: the next buffer; free-running
  std::uint16_t shared_wqe = 0;  // the buffer that was taken from the shared receive queue
  bool holds_shared_wqe = false;
  bool established = false;  // a packet has come
  bool ack_due = false;
  bool nak_sent = false;          // until the expected packet comes, no further one
  std::uint8_t nak_due = 0;       // AETH syndrome to send; 0: none
  std::vector<ResponseJob> jobs;  // a ring of reads_in × 2: what is asked, and what is asked again
  std::uint32_t job_head = 0;     // the first that is not sent whole
  std::uint32_t job_tail = 0;
  std::uint32_t repeats = 0;          // of those not sent whole: asked for again
  std::vector<AtomicAnswer> answers;  // a ring of reads_in: the last atomics executed
  std::uint32_t answer_tail = 0;

  ResponseJob& job(std::uint32_t i) noexcept { return jobs[i % jobs.size()]; }
  AtomicAnswer& answer(std::uint32_t i) noexcept { return answers[i % answers.size()]; }
  bool owes() const noexcept { return ack_due || nak_due != 0 || job_head != job_tail; }
};

// A QP's queues in memory of the program's.
struct QpMemory {
  std::byte* send = nullptr;
  std::uint32_t send_blocks = 0;  // a power of two; 0: no send queue
  std::byte* recv = nullptr;
  std::uint32_t recv_entries = 0;  // a power of two; 0: no receive queue
  std::uint32_t recv_stride_bytes = 0;
  std::uint32_t* records = nullptr;  // receive, send
  SoftSrq* srq = nullptr;            // instead of a receive queue
  std::uint32_t user_index = 0;      // what CQEs call the QP
};

class SoftQp : public driver::Qp {
 public:
  SoftQp(Engine& engine, std::uint32_t pd, SoftCq& send_cq, SoftCq& recv_cq, const driver::QpConfig& config);
  SoftQp(Engine& engine, std::uint32_t pd, SoftCq& send_cq, SoftCq& recv_cq, driver::Transport transport,
         const QpMemory& memory);
  ~SoftQp() override;

  void to_init(const driver::InitConfig& config) override;
  void to_rtr(const driver::RtrConfig& config) override;
  void to_rts(const driver::RtsConfig& config) override;
  void to_error() override;
  void to_reset() override;
  driver::QpState state() const override { return state_; }

  // --- the engine's ---

  bool can_receive() const noexcept {
    return state_ >= driver::QpState::rtr && state_ <= driver::QpState::sqe;
  }
  // What was sent may be answered.
  bool can_complete() const noexcept {
    return state_ == driver::QpState::rts || state_ == driver::QpState::sqd;
  }
  // The doorbell: only now, and only as far as the record says, do WQEs count.
  void take_doorbell() noexcept;
  // The record is ahead of the doorbells that were rung.
  bool has_posted() const noexcept {
    return send_.blocks != 0 &&
           static_cast<std::uint16_t>(big_endian(__atomic_load_n(send_.record, __ATOMIC_RELAXED)) -
                                      requester.doorbell) != 0;
  }
  // SQD: nothing new is sent until resume().
  void pause();
  void resume();
  WqeReader wqe(std::uint32_t index) const noexcept { return {send_.wqes, send_.blocks, index}; }
  // Buffers that the program has published and no message has taken.
  std::uint32_t receives() const noexcept {
    if (srq != nullptr) return srq->available() + (responder.holds_shared_wqe ? 1 : 0);
    return static_cast<std::uint16_t>(big_endian(__atomic_load_n(recv_.record, __ATOMIC_ACQUIRE)) -
                                      responder.head);
  }
  // The segments of the buffer that the message under way goes to, and how many there may be.
  const std::byte* receive_wqe() const noexcept {
    if (srq != nullptr) return srq->segments(responder.shared_wqe);
    return recv_.wqes + (responder.head & (recv_.entries - 1)) * recv_.stride_bytes;
  }

  std::uint32_t receive_segments() const noexcept {
    return srq != nullptr ? srq->segment_count() : recv_.stride_bytes / queue::segment_bytes;
  }
  std::uint32_t receive_pd() const noexcept { return srq != nullptr ? srq->pd() : pd; }

  Engine& engine;
  SoftCq& send_cq;
  SoftCq& recv_cq;
  const std::uint32_t pd;
  const driver::Transport transport;
  SoftSrq* const srq = nullptr;
  const std::uint32_t user_index = 0;
  driver::InitConfig init;
  driver::RtrConfig rtr;
  driver::RtsConfig rts;
  std::uint32_t mtu = 1024;
  Link* link = nullptr;  // RC, UC
  Requester requester;
  Responder responder;
  bool active = false;  // in the engine's list of QPs with something to send
  bool timed = false;   // in the engine's list of QPs with a timer

 private:
  friend class Engine;

  void allocate(const driver::QpConfig& config);

  struct alignas(queue::block_bytes) Block {
    std::byte bytes[queue::block_bytes];
  };
  driver::QpState state_ = driver::QpState::reset;
  std::vector<Block> send_memory_;
  std::vector<Block> recv_memory_;
  std::vector<std::uint32_t> records_;
};

}  // namespace pollen::soft
