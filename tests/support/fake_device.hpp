// A device that moves no data: it completes what is posted at once (or when told to), in mlx5's
// format, and receives what a test says has arrived. For tests of what stands on the driver
// boundary.
//
// Thread rules: as driver.hpp; arrive() and `behaviour` from any thread.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pollen/base/bytes.hpp"
#include "pollen/base/error.hpp"
#include "pollen/drivers/driver.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::fake {

struct Behaviour {
  std::atomic<bool> hold{false};  // doorbells complete nothing
  std::atomic<bool> dead{false};  // nor does the error state flush
};

struct alignas(64) Block {
  std::byte bytes[64];
};

class Cq final : public driver::Cq {
 public:
  explicit Cq(std::uint32_t entries) : cqes_(std::bit_ceil(entries)) {
    for (Block& cqe : cqes_) cqe.bytes[63] = std::byte{queue::cqe_never_written};
    ring_ = {.cqes = cqes_[0].bytes, .entries = static_cast<std::uint32_t>(cqes_.size()), .record = &record_};
  }

  void put(std::uint8_t opcode, std::uint32_t sop_qpn, std::uint16_t wqe_counter, std::uint32_t byte_len,
           std::uint32_t imm, std::uint8_t syndrome) {
    auto& cqe =
        *reinterpret_cast<queue::Cqe*>(ring_.cqes + (produced_ & (ring_.entries - 1)) * queue::cqe_bytes);
    cqe = {};
    cqe.sop_drop_qpn = big_endian(sop_qpn);
    cqe.wqe_counter = big_endian(wqe_counter);
    cqe.byte_cnt = big_endian(byte_len);
    cqe.imm_inval_pkey = big_endian(imm);
    if (syndrome != 0) reinterpret_cast<queue::ErrorCqe&>(cqe).syndrome = syndrome;
    const bool odd_lap = (produced_++ & ring_.entries) != 0;
    __atomic_store_n(&cqe.op_own, static_cast<std::uint8_t>(opcode << 4 | (odd_lap ? queue::cqe_owner : 0)),
                     __ATOMIC_RELEASE);
  }

 private:
  std::vector<Block> cqes_;
  std::uint32_t record_ = 0;
  std::uint32_t produced_ = 0;
};

class Qp final : public driver::Qp {
 public:
  Qp(std::uint32_t qpn, Cq& send_cq, Cq& recv_cq, const driver::QpConfig& config, const Behaviour& behaviour)
      : send_cq_(send_cq),
        recv_cq_(recv_cq),
        behaviour_(behaviour),
        send_blocks_(std::bit_ceil(config.send_wrs)),
        recv_blocks_(std::bit_ceil(config.recv_wrs)) {
    send_ = {.wqes = send_blocks_[0].bytes,
             .blocks = static_cast<std::uint32_t>(send_blocks_.size()),
             .record = &send_record_,
             .hook = {.function = ring, .context = this},
             .qpn = qpn,
             .max_inline_bytes = config.inline_bytes,
             .max_sge = config.send_sge};
    recv_ = {.wqes = recv_blocks_[0].bytes,
             .entries = static_cast<std::uint32_t>(recv_blocks_.size()),
             .stride_bytes = 64,
             .record = &recv_record_};
  }

  void to_init(const driver::InitConfig&) override { state_ = driver::QpState::init; }
  void to_rtr(const driver::RtrConfig&) override { state_ = driver::QpState::rtr; }
  void to_rts(const driver::RtsConfig&) override { state_ = driver::QpState::rts; }
  void to_reset() override { state_ = driver::QpState::reset; }
  driver::QpState state() const override { return state_; }
  void to_error() override {
    state_ = driver::QpState::error;
    if (behaviour_.dead) return;
    take_sends(MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    while (recv_taken_ != posted_receives()) {
      ++recv_taken_;
      recv_cq_.put(MLX5_CQE_RESP_ERR, qpn(), 0, 0, 0, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    }
  }

  // Completes what was held back.
  void complete() { take_sends(0); }
  // All that is posted fails, the first of it for a reason of its own.
  void fail(std::uint8_t syndrome) {
    state_ = driver::QpState::error;
    take_sends(syndrome);
  }
  // A message arrives; false: there is no buffer for it.
  bool receive(std::uint32_t byte_len, std::uint32_t imm) {
    if (recv_taken_ == posted_receives()) return false;
    ++recv_taken_;
    recv_cq_.put(MLX5_CQE_RESP_SEND_IMM, qpn(), 0, byte_len, imm, 0);
    return true;
  }
  std::uint32_t doorbells() const { return doorbells_; }

 private:
  static void ring(void* self, const queue::CtrlSegment*) noexcept {
    auto& qp = *static_cast<Qp*>(self);
    ++qp.doorbells_;
    if (!qp.behaviour_.hold) qp.take_sends(0);
  }
  std::uint16_t posted_receives() const { return static_cast<std::uint16_t>(big_endian(recv_record_)); }

  void take_sends(std::uint8_t syndrome) {
    while (taken_ != static_cast<std::uint16_t>(big_endian(send_record_))) {
      const auto& wqe = *reinterpret_cast<const queue::CtrlSegment*>(
          send_.wqes + (taken_ & (send_.blocks - 1)) * queue::block_bytes);
      const std::uint32_t opcode = big_endian(wqe.opmod_idx_opcode) & 0xff;
      const std::uint32_t segments = big_endian(wqe.qpn_ds) & 0x3f;
      if (syndrome != 0)
        send_cq_.put(MLX5_CQE_REQ_ERR, opcode << 24 | qpn(), taken_, 0, 0, syndrome);
      else if ((wqe.fm_ce_se & queue::ctrl_signal) != 0)
        send_cq_.put(MLX5_CQE_REQ, opcode << 24 | qpn(), taken_, 0, 0, 0);
      if (syndrome != 0) syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
      taken_ = static_cast<std::uint16_t>(taken_ + queue::blocks_of_segments(segments));
    }
  }

  Cq& send_cq_;
  Cq& recv_cq_;
  const Behaviour& behaviour_;
  std::vector<Block> send_blocks_;
  std::vector<Block> recv_blocks_;
  std::uint32_t send_record_ = 0;
  std::uint32_t recv_record_ = 0;
  std::uint16_t taken_ = 0;
  std::uint16_t recv_taken_ = 0;
  std::uint32_t doorbells_ = 0;
  driver::QpState state_ = driver::QpState::reset;
};

class Region final : public driver::Region {
 public:
  explicit Region(std::span<std::byte> memory) {
    address_ = memory.data();
    bytes_ = memory.size();
    lkey_ = 1;
    rkey_ = 2;
  }
};

class Pd final : public driver::Pd {
 public:
  std::unique_ptr<driver::Region> register_memory(std::span<std::byte> memory, driver::Access,
                                                  driver::SharedBacking) override {
    return std::make_unique<Region>(memory);
  }
};

class Port final : public driver::Port {
 public:
  Port(std::atomic<std::uint32_t>& next_qpn, const Behaviour& behaviour, bool in_loop)
      : next_qpn_(next_qpn),
        behaviour_(behaviour),
        in_loop_(in_loop),
        wake_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Port() override { ::close(wake_fd_); }

  std::unique_ptr<driver::Cq> create_cq(std::uint32_t entries) override {
    return std::make_unique<Cq>(entries);
  }
  std::unique_ptr<driver::Qp> create_qp(driver::Pd&, driver::Cq& send_cq, driver::Cq& recv_cq,
                                        const driver::QpConfig& config) override {
    auto qp = std::make_unique<Qp>(next_qpn_++, dynamic_cast<Cq&>(send_cq), dynamic_cast<Cq&>(recv_cq),
                                   config, behaviour_);
    receiver_ = qp.get();
    return qp;
  }
  queue::Address create_address(driver::Pd&, const driver::PathConfig&, std::uint32_t,
                                std::uint32_t) override {
    return {};
  }

  // Any thread: a message for the last QP, which progress() delivers.
  void arrive() {
    ++arrived_;
    const std::uint64_t one = 1;
    if (armed_.load()) [[maybe_unused]]
      const ssize_t written = ::write(wake_fd_, &one, sizeof one);
  }
  driver::Progress progress() noexcept override {
    return in_loop_ ? driver::Progress{.function = deliver, .context = this} : driver::Progress{};
  }
  std::optional<driver::Event> next_event() override { return std::exchange(event, std::nullopt); }

  int wake_fd() const noexcept override { return wake_fd_; }
  bool arm() noexcept override {
    ++arms;
    armed_ = true;
    return arrived_ == 0;
  }
  void disarm() noexcept override {
    armed_ = false;
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_fd_, &count, sizeof count);
  }

  std::optional<driver::Event> event;
  std::atomic<std::uint32_t> arms{0};
  std::uint64_t progress_calls = 0;

 private:
  static bool deliver(void* self) noexcept {
    auto& port = *static_cast<Port*>(self);
    ++port.progress_calls;
    if (port.arrived_ == 0 || port.receiver_ == nullptr || !port.receiver_->receive(64, 0)) return false;
    --port.arrived_;
    return true;
  }

  std::atomic<std::uint32_t>& next_qpn_;
  const Behaviour& behaviour_;
  const bool in_loop_;
  const int wake_fd_;
  Qp* receiver_ = nullptr;
  std::atomic<std::uint32_t> arrived_{0};
  std::atomic<bool> armed_{false};
};

class Device final : public driver::Device {
 public:
  // in_loop: it works in the worker's turn, as the software NIC does.
  explicit Device(bool in_loop = false) : in_loop_(in_loop) {}

  const driver::DeviceInfo& info() const noexcept override { return device_info; }
  const driver::Limits& limits() const noexcept override { return device_limits; }
  driver::PortInfo query_port(std::uint32_t) const override {
    return {.active = true, .mtu_bytes = 4096, .gids = {}};
  }
  std::unique_ptr<driver::Pd> create_pd() override { return std::make_unique<Pd>(); }
  std::unique_ptr<driver::Port> open_port(std::uint32_t) override {
    return std::make_unique<Port>(next_qpn_, behaviour, in_loop_);
  }

  Behaviour behaviour;
  driver::DeviceInfo device_info{.name = "fake0", .driver = "soft", .description = "a fake device"};
  driver::Limits device_limits{.max_qps = 64,
                               .max_send_wrs = 1024,
                               .max_recv_wrs = 1024,
                               .max_sge = 4,
                               .max_inline_bytes = 220,
                               .max_cqs = 16,
                               .max_cq_entries = 4096,
                               .max_region_bytes = 1U << 30,
                               .max_message_bytes = 1U << 30,
                               .max_reads_out = 16,
                               .max_reads_in = 16};

 private:
  const bool in_loop_;
  std::atomic<std::uint32_t> next_qpn_{0x100};
};

}  // namespace pollen::fake
