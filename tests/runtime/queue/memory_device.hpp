// A device made of plain memory, whose part the test plays: it parses the WQEs that were rung
// for and writes CQEs, both as the hardware does, and refuses what the hardware could not know.
//
// It goes by doorbells alone: a WQE that is in the ring, or only in the doorbell record, does not
// exist for it.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "pollen/base/bytes.hpp"
#include "pollen/queue/completion_queue.hpp"
#include "pollen/queue/recv_queue.hpp"
#include "pollen/queue/send_burst.hpp"
#include "pollen/queue/send_queue.hpp"

namespace memory_device {

using namespace pollen::queue;
using pollen::big_endian;

struct alignas(64) Block {
  std::byte bytes[64];
};
// Of all blocks together, one behind the other.
inline std::byte* bytes_of(std::vector<Block>& blocks) { return reinterpret_cast<std::byte*>(blocks.data()); }
inline const std::byte* bytes_of(const std::vector<Block>& blocks) {
  return reinterpret_cast<const std::byte*>(blocks.data());
}

inline constexpr std::byte untouched{0xa5};

// The ring of a completion queue, and the device's end of it.
class CqMemory {
 public:
  explicit CqMemory(std::uint32_t entries, std::uint32_t first = 0) : cqes_(entries), produced_(first) {
    std::memset(cqes_.data(), 0, cqes_.size() * sizeof(Block));
    // As a driver hands it over, or as if it had been used up to `first`.
    for (Block& cqe : cqes_) cqe.bytes[63] = std::byte{cqe_never_written};
    if (first != 0)
      for (std::uint32_t i = first - entries; i != first; ++i)
        cqes_[i & (entries - 1)].bytes[63] = std::byte{(i & entries) != 0 ? cqe_owner : std::uint8_t{0}};
    record_ = big_endian(first & 0xffffff);
  }

  CqRing ring() {
    return {.cqes = cqes_[0].bytes, .entries = static_cast<std::uint32_t>(cqes_.size()), .record = &record_};
  }
  std::uint32_t produced() const { return produced_; }
  std::uint32_t consumer_record() const { return big_endian(record_); }
  // Entries that the device may not write, for all it knows.
  std::uint32_t occupied() const { return (produced_ - consumer_record()) & 0xffffff; }

  void put_send(Opcode opcode, std::uint32_t qpn, std::uint32_t wqe_counter, std::uint32_t byte_cnt = 0) {
    Cqe& cqe = next();
    cqe.sop_drop_qpn = big_endian(static_cast<std::uint32_t>(opcode) << 24 | qpn);
    cqe.wqe_counter = big_endian(static_cast<std::uint16_t>(wqe_counter));
    cqe.byte_cnt = big_endian(byte_cnt);
    publish(cqe, MLX5_CQE_REQ);
  }
  void put_send_error(Opcode opcode, std::uint32_t qpn, std::uint32_t wqe_counter, Status status,
                      std::uint8_t vendor = 0) {
    Cqe& cqe = next();
    auto& error = reinterpret_cast<ErrorCqe&>(cqe);
    error.s_wqe_opcode_qpn = big_endian(static_cast<std::uint32_t>(opcode) << 24 | qpn);
    error.wqe_counter = big_endian(static_cast<std::uint16_t>(wqe_counter));
    error.syndrome = static_cast<std::uint8_t>(status);
    error.vendor_err_synd = vendor;
    publish(cqe, MLX5_CQE_REQ_ERR);
  }
  struct Arrival {
    std::uint32_t byte_len = 0;
    std::uint32_t imm = 0;
    std::uint32_t src_qpn = 0;
    bool grh = false;
    bool solicited = false;
    std::uint16_t wqe_counter = 0;
  };
  void put_receive(Opcode opcode, std::uint32_t qpn, const Arrival& arrival) {
    Cqe& cqe = next();
    cqe.sop_drop_qpn = big_endian(qpn);
    cqe.byte_cnt = big_endian(arrival.byte_len);
    cqe.imm_inval_pkey = big_endian(arrival.imm);
    cqe.flags_rqpn = big_endian(arrival.src_qpn | (arrival.grh ? 1U << 28 : 0U));
    cqe.wqe_counter = big_endian(arrival.wqe_counter);
    publish(cqe, static_cast<std::uint8_t>(static_cast<std::uint8_t>(opcode) & 0xf),
            arrival.solicited ? std::uint8_t{2} : std::uint8_t{0});
  }
  void put_receive_error(std::uint32_t qpn, Status status, std::uint8_t vendor = 0) {
    Cqe& cqe = next();
    auto& error = reinterpret_cast<ErrorCqe&>(cqe);
    error.s_wqe_opcode_qpn = big_endian(qpn);
    error.syndrome = static_cast<std::uint8_t>(status);
    error.vendor_err_synd = vendor;
    publish(cqe, MLX5_CQE_RESP_ERR);
  }

 private:
  Cqe& next() {
    // The hardware would break every QP on the queue.
    REQUIRE_MESSAGE(occupied() < cqes_.size(), "the completion queue is overrun");
    auto& cqe = *reinterpret_cast<Cqe*>(cqes_[produced_ & (cqes_.size() - 1)].bytes);
    const std::uint8_t owner = cqe.op_own;  // stays the last lap's until publish()
    std::memset(static_cast<void*>(&cqe), 0xee, sizeof cqe - 1);
    cqe.op_own = owner;
    return cqe;
  }
  void publish(Cqe& cqe, std::uint8_t opcode, std::uint8_t solicited = 0) {
    const bool odd_lap = (produced_++ & cqes_.size()) != 0;
    cqe.op_own = static_cast<std::uint8_t>(opcode << 4 | solicited | (odd_lap ? cqe_owner : 0));
  }

  std::vector<Block> cqes_;
  std::uint32_t record_ = 0;
  std::uint32_t produced_;
};

struct Wqe {
  std::uint32_t index;  // of its first block, 16 bits
  Opcode opcode;
  std::uint32_t segments;
  std::uint32_t blocks;
  std::uint8_t flags;
  std::vector<std::byte> bytes;  // in one piece, also where the ring wraps

  bool signalled() const { return (flags & ctrl_signal) != 0; }
};

// The memory of a send queue, and the device's end of it.
class SendMemory {
 public:
  struct Shape {
    std::uint32_t blocks = 64;
    std::uint32_t qpn = 0x123456;
    std::uint32_t max_inline_bytes = 220;
    std::uint32_t max_sge = 8;
    bool hook = true;  // else the UAR
    std::uint32_t half_bytes = 256;
    std::uint32_t first = 0;  // producer index at which the queue stands
  };

  explicit SendMemory(const Shape& shape)
      : shape_(shape), wqes_(shape.blocks), uar_page_(64), taken_(shape.first) {
    refill();
    std::memset(uar_page_.data(), static_cast<int>(untouched), uar_page_.size() * sizeof(Block));
    uar_.registers = uar_page_[0].bytes;
    uar_.half_bytes = shape.half_bytes;
    rung_ = static_cast<std::uint16_t>(shape.first);
  }
  SendMemory(const SendMemory&) = delete;
  SendMemory& operator=(const SendMemory&) = delete;

  SendRing ring() {
    return {.wqes = wqes_[0].bytes,
            .blocks = shape_.blocks,
            .record = &record_,
            .uar = &uar_,
            .hook = shape_.hook ? DoorbellHook{.function = on_doorbell, .context = this} : DoorbellHook{},
            .qpn = shape_.qpn,
            .max_inline_bytes = shape_.max_inline_bytes,
            .max_sge = shape_.max_sge};
  }
  std::uint32_t qpn() const { return shape_.qpn; }
  Uar& uar() { return uar_; }
  std::uint32_t record() const { return big_endian(record_); }
  const std::byte* uar_bytes(std::uint32_t offset) const { return bytes_of(uar_page_) + offset; }
  std::byte* block(std::uint32_t index) { return wqes_[index & (shape_.blocks - 1)].bytes; }
  void refill() { std::memset(wqes_.data(), static_cast<int>(untouched), wqes_.size() * sizeof(Block)); }

  std::uint32_t doorbells() const { return doorbells_; }
  const CtrlSegment* last_rung() const { return last_rung_; }
  // With the UAR instead of a hook: takes what the record says.
  void believe_record() { rung_ = static_cast<std::uint16_t>(record()); }

  // The next WQE that was rung for. Checks what every WQE must have right.
  std::optional<Wqe> take() {
    if (static_cast<std::uint16_t>(taken_) == rung_) return std::nullopt;
    CtrlSegment ctrl;
    std::memcpy(&ctrl, block(taken_), sizeof ctrl);
    const std::uint32_t head = big_endian(ctrl.opmod_idx_opcode);
    const std::uint32_t qpn_ds = big_endian(ctrl.qpn_ds);
    Wqe wqe{.index = head >> 8 & 0xffff,
            .opcode = static_cast<Opcode>(head & 0xff),
            .segments = qpn_ds & 0x3f,
            .blocks = blocks_of_segments(qpn_ds & 0x3f),
            .flags = ctrl.fm_ce_se,
            .bytes = {}};
    REQUIRE(wqe.index == (taken_ & 0xffff));
    REQUIRE((head >> 24) == 0);
    REQUIRE((qpn_ds >> 8) == shape_.qpn);
    REQUIRE(wqe.segments >= 1);
    REQUIRE(wqe.blocks <= static_cast<std::uint16_t>(rung_ - taken_));
    wqe.bytes.reserve(wqe.segments * segment_bytes);
    for (std::uint32_t i = 0; i < wqe.segments; ++i) {
      const std::byte* from = block(taken_ + i / segments_per_block) + i % segments_per_block * segment_bytes;
      wqe.bytes.insert(wqe.bytes.end(), from, from + segment_bytes);
    }
    taken_ += wqe.blocks;
    return wqe;
  }
  bool has_work() const { return static_cast<std::uint16_t>(taken_) != rung_; }

 private:
  static void on_doorbell(void* context, const CtrlSegment* last) noexcept {
    auto& self = *static_cast<SendMemory*>(context);
    ++self.doorbells_;
    self.rung_ = static_cast<std::uint16_t>(self.record());
    self.last_rung_ = last;
  }

  Shape shape_;
  std::vector<Block> wqes_;
  std::vector<Block> uar_page_;
  Uar uar_;
  std::uint32_t record_ = 0;
  std::uint32_t taken_;
  std::uint16_t rung_ = 0;
  std::uint32_t doorbells_ = 0;
  const CtrlSegment* last_rung_ = nullptr;
};

struct RecvMemory {
  RecvMemory(std::uint32_t count, std::uint32_t stride)
      : entries(count), stride_bytes(stride), wqes((count * stride + 63) / 64) {
    std::memset(wqes.data(), static_cast<int>(untouched), wqes.size() * sizeof(Block));
  }
  RecvRing ring() {
    return {.wqes = wqes[0].bytes, .entries = entries, .stride_bytes = stride_bytes, .record = &record_be};
  }
  const std::byte* wqe(std::uint32_t index) const {
    return bytes_of(wqes) + (index & (entries - 1)) * stride_bytes;
  }
  std::uint32_t record() const { return big_endian(record_be); }

  std::uint32_t entries;
  std::uint32_t stride_bytes;
  std::vector<Block> wqes;
  std::uint32_t record_be = 0;
};

// A send queue on a completion queue of its own: what most tests need.
struct Rig {
  explicit Rig(const SendMemory::Shape& shape = {}, std::uint32_t signal_every = 16,
               std::uint32_t entries = 256)
      : cq_memory(entries),
        send_memory(shape),
        cq(cq_memory.ring()),
        sq(send_memory.ring(), cq, signal_every) {
    cq.attach(shape.qpn, &sq, nullptr);
  }

  // The device completes everything it was told of. Returns the WQEs.
  std::vector<Wqe> complete_all() {
    std::vector<Wqe> done;
    while (auto wqe = send_memory.take()) {
      if (wqe->signalled()) cq_memory.put_send(wqe->opcode, send_memory.qpn(), wqe->index);
      done.push_back(std::move(*wqe));
    }
    return done;
  }
  std::vector<Completion> poll_all() {
    std::vector<Completion> all;
    Completion out[32];
    while (const std::uint32_t count = cq.poll(out, 32)) all.insert(all.end(), out, out + count);
    return all;
  }
  // Moves the ring on by `blocks`, with nothing outstanding afterwards.
  void advance(std::uint32_t blocks) {
    for (; blocks != 0; --blocks) {
      REQUIRE(sq.burst().nop());
      complete_all();
      poll_all();
    }
    REQUIRE(sq.outstanding() == 0);
  }

  CqMemory cq_memory;
  SendMemory send_memory;
  CompletionQueue cq;
  SendQueue sq;
};

inline std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + 1);
  return data;
}

}  // namespace memory_device
