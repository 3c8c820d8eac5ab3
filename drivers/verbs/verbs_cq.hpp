// A completion queue: an ibv_cq, and the ring in mlx5's format that its completions are written to.
// It belongs to its port's thread.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "pollen/base/bytes.hpp"
#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/verbs/handles.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::verbs {

class VerbsPort;

// Of one completion, in host order. syndrome 0: success.
struct CqeFields {
  std::uint32_t qpn = 0;
  std::uint16_t wqe_counter = 0;
  std::uint8_t opcode = 0;       // MLX5_CQE_…
  std::uint8_t send_opcode = 0;  // of the WQE, for requester CQEs
  std::uint32_t byte_len = 0;
  std::uint32_t imm = 0;
  std::uint32_t src_qpn = 0;
  bool grh = false;
  std::uint8_t syndrome = 0;
  std::uint8_t vendor_syndrome = 0;
};

class VerbsCq final : public driver::Cq {
 public:
  // entries: a power of two. Throws Error.
  VerbsCq(VerbsPort& port, std::uint32_t entries);
  ~VerbsCq() override;  // its QPs are gone
  VerbsCq(const VerbsCq&) = delete;
  VerbsCq& operator=(const VerbsCq&) = delete;

  ibv_cq* handle() const noexcept { return handle_.get(); }
  bool overrun() const noexcept { return overrun_; }

  // Writes a CQE. A full ring is an overrun, as on hardware: nothing more is written, now or later.
  void push(const CqeFields& fields) noexcept {
    if (overrun_ || !has_room()) [[unlikely]] {
      report_overrun();
      return;
    }
    queue::Cqe& cqe = memory_[producer_ & (ring_.entries - 1)];
    cqe.sop_drop_qpn = big_endian(static_cast<std::uint32_t>(fields.send_opcode) << 24 | fields.qpn);
    cqe.wqe_counter = big_endian(fields.wqe_counter);
    if (fields.syndrome == 0) {
      cqe.byte_cnt = big_endian(fields.byte_len);
      cqe.imm_inval_pkey = big_endian(fields.imm);
      cqe.flags_rqpn = big_endian((fields.src_qpn & 0xffffff) | (fields.grh ? 1U << 28 : 0U));
    } else {
      auto& error = reinterpret_cast<queue::ErrorCqe&>(cqe);
      error.syndrome = fields.syndrome;
      error.vendor_err_synd = fields.vendor_syndrome;
    }
    const std::uint8_t owner = (producer_ & ring_.entries) != 0 ? queue::cqe_owner : 0;
    // Last: the reader takes the rest as valid when it sees the owner bit.
    __atomic_store_n(&cqe.op_own, static_cast<std::uint8_t>(fields.opcode << 4 | owner), __ATOMIC_RELEASE);
    ++producer_;
  }

 private:
  bool has_room() noexcept {
    if (producer_ - consumer_ < ring_.entries) return true;
    // The record holds 24 bits of the reader's index.
    const std::uint32_t seen = big_endian(__atomic_load_n(&record_, __ATOMIC_ACQUIRE));
    consumer_ = producer_ - ((producer_ - seen) & 0xffffff);
    return producer_ - consumer_ < ring_.entries;
  }
  void report_overrun() noexcept;

  struct alignas(queue::cqe_bytes) Entry : queue::Cqe {};

  VerbsPort& port_;
  CqHandle handle_;
  std::vector<Entry> memory_;
  std::uint32_t record_ = 0;
  std::uint32_t producer_ = 0;
  std::uint32_t consumer_ = 0;
  bool overrun_ = false;
};

}  // namespace pollen::verbs
