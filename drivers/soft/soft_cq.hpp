// Writes CQEs as the NIC does. An engine's completion queue: it belongs to the engine's thread.
#pragma once

#include <cstdint>
#include <cstring>
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
  std::uint32_t imm = 0;       // host order
  std::uint32_t src_qpn = 0;   // UD receives
  bool grh = false;
  bool solicited = false;
  std::uint8_t syndrome = 0;  // for error CQEs
  std::uint8_t vendor_syndrome = 0;
};

class SoftCq : public driver::Cq {
 public:
  explicit SoftCq(std::uint32_t entries) : memory_(entries), record_(2) {
    for (Entry& cqe : memory_) cqe.op_own = queue::cqe_never_written;
    ring_ = {reinterpret_cast<std::byte*>(memory_.data()), entries, record_.data()};
  }

  bool overrun() const noexcept { return overrun_; }

  // False: the queue is full. As on hardware nothing more is written, now or later, and the QPs
  // on it are broken.
  bool push(const CqeFields& fields) noexcept {
    if (overrun_ || !has_room()) {
      overrun_ = true;
      return false;
    }
    queue::Cqe& cqe = memory_[producer_ & (ring_.entries - 1)];
    cqe.sop_drop_qpn = big_endian(static_cast<std::uint32_t>(fields.send_opcode) << 24 | fields.qpn);
    cqe.wqe_counter = big_endian(fields.wqe_counter);
    if (fields.syndrome == 0) {
      cqe.byte_cnt = big_endian(fields.byte_len);
      cqe.imm_inval_pkey = big_endian(fields.imm);
      cqe.flags_rqpn = big_endian(fields.src_qpn | (fields.grh ? 1U << 28 : 0U));
    } else {
      // The syndromes lie where a good CQE has its timestamp.
      auto& error = reinterpret_cast<queue::ErrorCqe&>(cqe);
      error.syndrome = fields.syndrome;
      error.vendor_err_synd = fields.vendor_syndrome;
    }
    const std::uint8_t owner = (producer_ & ring_.entries) != 0 ? queue::cqe_owner : 0;
    // Last: the reader takes the rest as valid when it sees the owner bit.
    __atomic_store_n(&cqe.op_own,
                     static_cast<std::uint8_t>(fields.opcode << 4 | (fields.solicited ? 2 : 0) | owner),
                     __ATOMIC_RELEASE);
    ++producer_;
    return true;
  }

  std::uint32_t written() const noexcept { return producer_; }

 private:
  bool has_room() noexcept {
    if (producer_ - consumer_ < ring_.entries) return true;
    // The record holds 24 bits of the reader's index.
    const std::uint32_t seen = big_endian(__atomic_load_n(record_.data(), __ATOMIC_ACQUIRE));
    consumer_ = producer_ - ((producer_ - seen) & 0xffffff);
    return producer_ - consumer_ < ring_.entries;
  }

  struct alignas(queue::cqe_bytes) Entry : queue::Cqe {};

  std::vector<Entry> memory_;
  std::vector<std::uint32_t> record_;
  std::uint32_t producer_ = 0;
  std::uint32_t consumer_ = 0;
  bool overrun_ = false;
};

}  // namespace pollen::soft
