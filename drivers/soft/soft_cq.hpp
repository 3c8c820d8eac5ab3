// Writes CQEs as the NIC does. An engine's completion queue: it belongs to the engine's thread.
//
// The entries are its own, or memory of somebody else's who asks for a device's behaviour down to
// the byte (drivers/soft/uverbs): then they may be 128 bytes apart, with the CQE in the second half.
#pragma once

#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

#include "pollen/base/bytes.hpp"
#include "pollen/drivers/driver.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::soft {

// What all kinds have in common.
struct CqeFields {
  std::uint32_t qpn = 0;
  std::uint16_t wqe_counter = 0;
  std::uint8_t opcode = 0;       // MLX5_CQE_…
  std::uint8_t send_opcode = 0;  // of the WQE, for requester CQEs
  std::uint32_t byte_len = 0;
  std::uint32_t imm = 0;      // host order
  std::uint32_t src_qpn = 0;  // UD receives
  bool grh = false;
  bool solicited = false;
  std::uint8_t syndrome = 0;  // for error CQEs
  std::uint8_t vendor_syndrome = 0;
};

// A completion queue in memory of the program's.
struct CqMemory {
  std::byte* cqes = nullptr;
  std::uint32_t entries = 0;        // a power of two
  std::uint32_t stride_bytes = 64;  // 64 or 128
  std::uint32_t* record = nullptr;  // consumer index, arm
  bool timestamps = false;          // CQEs carry CLOCK_MONOTONIC in ns
  bool ignore_overrun = false;      // as asked for: the reader takes care
};

class SoftCq : public driver::Cq {
 public:
  explicit SoftCq(std::uint32_t entries) : memory_(entries), records_(2) {
    for (Entry& cqe : memory_) cqe.op_own = queue::cqe_never_written;
    ring_ = {reinterpret_cast<std::byte*>(memory_.data()), entries, records_.data()};
  }
  // The owner has marked the entries as never written.
  explicit SoftCq(const CqMemory& memory)
      : stride_(memory.stride_bytes), timestamps_(memory.timestamps), ignore_overrun_(memory.ignore_overrun) {
    ring_ = {memory.cqes, memory.entries, memory.record};
  }

  bool overrun() const noexcept { return overrun_; }

  // False: the queue is full. As on hardware nothing more is written, now or later, and the QPs
  // on it are broken. user_index: what the program calls the QP.
  bool push(const CqeFields& fields, std::uint32_t user_index) noexcept {
    if (overrun_ || !has_room()) {
      overrun_ = true;
      return false;
    }
    queue::Cqe& cqe = entry(producer_);
    cqe.sop_drop_qpn = big_endian(static_cast<std::uint32_t>(fields.send_opcode) << 24 | fields.qpn);
    cqe.wqe_counter = big_endian(fields.wqe_counter);
    cqe.srqn_uidx = big_endian(user_index);
    if (fields.syndrome == 0) {
      cqe.byte_cnt = big_endian(fields.byte_len);
      cqe.imm_inval_pkey = big_endian(fields.imm);
      cqe.flags_rqpn = big_endian(fields.src_qpn | (fields.grh ? 1U << 28 : 0U));
      if (timestamps_) [[unlikely]]
        cqe.timestamp = big_endian(now_ns());
    } else {
      // The syndromes lie where a good CQE has its timestamp.
      auto& error = reinterpret_cast<queue::ErrorCqe&>(cqe);
      error.syndrome = fields.syndrome;
      error.vendor_err_synd = fields.vendor_syndrome;
    }
    publish(cqe, fields.opcode, fields.solicited);
    if (fields.solicited || fields.syndrome != 0) urgent_ = producer_;
    return true;
  }

  std::uint32_t written() const noexcept { return producer_; }
  // Behind the last CQE that even a reader wants to hear of who asked for solicited ones only.
  std::uint32_t written_urgent() const noexcept { return urgent_; }

  // Goes on in other memory. A last CQE in the old one says where; the reader copies what is before
  // it. False: there is no room for that.
  bool resize(std::byte* cqes, std::uint32_t entries) noexcept {
    if (overrun_ || !has_room()) return false;
    publish(entry(producer_), MLX5_CQE_RESIZE_CQ, false);
    ring_.cqes = cqes;
    ring_.entries = entries;
    return true;
  }
  std::uint32_t stride_bytes() const noexcept { return stride_; }
  // How many the reader has not taken.
  std::uint32_t unread() noexcept {
    refresh();
    return producer_ - consumer_;
  }

 private:
  queue::Cqe& entry(std::uint32_t index) noexcept {
    std::byte* at =
        ring_.cqes + std::size_t{index & (ring_.entries - 1)} * stride_ + (stride_ - queue::cqe_bytes);
    return *reinterpret_cast<queue::Cqe*>(at);
  }
  void publish(queue::Cqe& cqe, std::uint8_t opcode, bool solicited) noexcept {
    const std::uint8_t owner = (producer_ & ring_.entries) != 0 ? queue::cqe_owner : 0;
    // Last: the reader takes the rest as valid when it sees the owner bit.
    __atomic_store_n(&cqe.op_own, static_cast<std::uint8_t>(opcode << 4 | (solicited ? 2 : 0) | owner),
                     __ATOMIC_RELEASE);
    ++producer_;
  }
  void refresh() noexcept {
    // The record holds 24 bits of the reader's index.
    const std::uint32_t seen = big_endian(__atomic_load_n(ring_.record, __ATOMIC_ACQUIRE));
    consumer_ = producer_ - ((producer_ - seen) & 0xffffff);
  }
  bool has_room() noexcept {
    if (producer_ - consumer_ < ring_.entries || ignore_overrun_) return true;
    refresh();
    return producer_ - consumer_ < ring_.entries;
  }
  static std::uint64_t now_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
  }

  struct alignas(queue::cqe_bytes) Entry : queue::Cqe {};

  std::vector<Entry> memory_;
  std::vector<std::uint32_t> records_;
  std::uint32_t stride_ = queue::cqe_bytes;
  bool timestamps_ = false;
  bool ignore_overrun_ = false;
  bool overrun_ = false;
  std::uint32_t producer_ = 0;
  std::uint32_t consumer_ = 0;
  std::uint32_t urgent_ = 0;
};

}  // namespace pollen::soft
