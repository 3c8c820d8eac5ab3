#include "pollen/drivers/soft/soft_qp.hpp"

#include <fmt/format.h>

#include <bit>
#include <cerrno>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/engine.hpp"

namespace pollen::soft {

namespace {

using driver::QpState;
using driver::Transport;

void ring_doorbell(void* context, const queue::CtrlSegment*) noexcept {
  static_cast<SoftQp*>(context)->take_doorbell();
}

}  // namespace

SoftQp::SoftQp(Engine& the_engine, std::uint32_t the_pd, SoftCq& the_send_cq, SoftCq& the_recv_cq,
               const driver::QpConfig& config)
    : engine(the_engine),
      send_cq(the_send_cq),
      recv_cq(the_recv_cq),
      pd(the_pd),
      transport(config.transport) {
  allocate(config);
  send_.qpn = engine.add_qp(*this);
}

SoftQp::SoftQp(Engine& the_engine, std::uint32_t the_pd, SoftCq& the_send_cq, SoftCq& the_recv_cq,
               driver::Transport the_transport, const QpMemory& memory)
    : engine(the_engine),
      send_cq(the_send_cq),
      recv_cq(the_recv_cq),
      pd(the_pd),
      transport(the_transport),
      srq(memory.srq),
      user_index(memory.user_index) {
  requester.ring.resize(std::max(memory.send_blocks, 1U));
  send_.wqes = memory.send;
  send_.blocks = memory.send_blocks;
  send_.record = memory.records + MLX5_SND_DBR;
  send_.hook = {&ring_doorbell, this};
  recv_ = {.wqes = memory.recv,
           .entries = memory.recv_entries,
           .stride_bytes = memory.recv_stride_bytes,
           .record = memory.records + MLX5_RCV_DBR};
  send_.qpn = engine.add_qp(*this);
}

SoftQp::~SoftQp() { engine.remove_qp(*this); }

void SoftQp::allocate(const driver::QpConfig& config) {
  // As libmlx5 sizes its rings: room for send_wrs requests of the largest kind.
  const std::uint32_t head = transport == Transport::ud ? 4 : 2;
  const std::uint32_t data =
      std::max(config.send_sge, config.inline_bytes == 0 ? 1 : queue::inline_segments(config.inline_bytes));
  const std::uint32_t per_request = queue::blocks_of_segments(std::max(head + data, 4U));
  const std::uint32_t blocks = std::bit_ceil(std::max(config.send_wrs, 1U) * per_request);
  if (blocks > queue::max_send_blocks)
    throw Error(EINVAL,
                {.attempted = fmt::format("create a send queue of {} requests", config.send_wrs),
                 .why = fmt::format("with {} gather entries and {} inline bytes each that is {} blocks of 64 "
                                    "bytes, and {} is the most",
                                    config.send_sge, config.inline_bytes, blocks, queue::max_send_blocks),
                 .remedy = "Ask for fewer requests, or for less inline data in each"});
  const std::uint32_t entries = config.recv_wrs == 0 ? 0 : std::bit_ceil(config.recv_wrs);
  const std::uint32_t stride = std::bit_ceil(std::max(config.recv_sge, 1U)) * queue::segment_bytes;
  send_memory_.resize(blocks);
  recv_memory_.resize((std::size_t{entries} * stride + sizeof(Block) - 1) / sizeof(Block));
  records_.resize(2);
  requester.ring.resize(blocks);
  send_ = {.wqes = send_memory_.data()->bytes,
           .blocks = blocks,
           .record = &records_[MLX5_SND_DBR],
           .hook = {&ring_doorbell, this},
           .max_inline_bytes = config.inline_bytes,
           .max_sge = config.send_sge};
  recv_ = {.wqes = entries == 0 ? nullptr : recv_memory_.data()->bytes,
           .entries = entries,
           .stride_bytes = stride,
           .record = &records_[MLX5_RCV_DBR]};
}

namespace {

void require_state(const SoftQp& qp, QpState wanted, QpState next) {
  if (qp.state() == wanted) return;
  throw Error(EINVAL, {.attempted = fmt::format("move QP {} to {}", qp.qpn(), name(next)),
                       .why = fmt::format("it is in {}, not in {}", name(qp.state()), name(wanted)),
                       .remedy = "The order is reset, init, rtr, rts"});
}

void require_range(const SoftQp& qp, const char* what, std::uint32_t value, std::uint32_t most) {
  if (value <= most) return;
  throw Error(EINVAL, {.attempted = fmt::format("connect QP {}", qp.qpn()),
                       .why = fmt::format("{} {} is beyond {}", what, value, most),
                       .remedy = "Ask for less"});
}

}  // namespace

void SoftQp::to_init(const driver::InitConfig& config) {
  require_state(*this, QpState::reset, QpState::init);
  init = config;
  state_ = QpState::init;
}

void SoftQp::to_rtr(const driver::RtrConfig& config) {
  require_state(*this, QpState::init, QpState::rtr);
  rtr = config;
  if (transport != Transport::ud) {
    require_range(*this, "the read depth", config.reads_in, 16);
    require_range(*this, "the peer's QP number", config.remote_qpn, psn_mask);
    require_range(*this, "the peer's first PSN", config.remote_psn, psn_mask);
    require_range(*this, "the RNR timer's code", config.min_rnr_timer, 31);
    if (!std::has_single_bit(config.mtu_bytes) || config.mtu_bytes < 256 || config.mtu_bytes > max_mtu_bytes)
      throw Error(EINVAL, {.attempted = fmt::format("connect QP {}", qpn()),
                           .why = fmt::format("an MTU of {} bytes does not exist", config.mtu_bytes),
                           .remedy = "It is 256, 512, 1024, 2048 or 4096"});
    mtu = config.mtu_bytes;
    link = &engine.link_to(config.path.remote_gid, config.remote_qpn);
    engine.refresh(*link);
    responder.expected_psn = config.remote_psn;
    // Powers of two: their indices are free-running.
    const std::size_t reads = std::bit_ceil(std::max<std::size_t>(config.reads_in, 1));
    responder.jobs.resize(reads * 2);
    responder.answers.resize(reads);
  } else {
    mtu = max_mtu_bytes;
  }
  state_ = QpState::rtr;
}

void SoftQp::to_rts(const driver::RtsConfig& config) {
  require_state(*this, QpState::rtr, QpState::rts);
  require_range(*this, "the read depth", config.reads_out, 16);
  require_range(*this, "the retry count", config.retry_count, 7);
  require_range(*this, "the RNR retry count", config.rnr_retry, 7);
  require_range(*this, "the timeout's code", config.timeout, 31);
  rts = config;
  requester.next_psn = config.local_psn & psn_mask;
  requester.una_psn = requester.next_psn;
  requester.retries_left = config.retry_count;
  requester.rnr_left = config.rnr_retry;
  state_ = QpState::rts;
  if (requester.has_unsent()) engine.activate(*this);
}

void SoftQp::take_doorbell() noexcept {
  if (send_.blocks == 0) return;
  Requester& r = requester;
  const auto rung =
      static_cast<std::uint16_t>(big_endian(__atomic_load_n(send_.record, __ATOMIC_ACQUIRE)) - r.doorbell);
  r.doorbell += rung;
  engine.activate(*this);
}

void SoftQp::pause() {
  require_state(*this, QpState::rts, QpState::sqd);
  state_ = QpState::sqd;
}

void SoftQp::resume() {
  require_state(*this, QpState::sqd, QpState::rts);
  state_ = QpState::rts;
  engine.activate(*this);
}

void SoftQp::to_error() { engine.enter_error(*this, "the program asked for it"); }

void SoftQp::to_reset() {
  const std::size_t blocks = requester.ring.size();
  requester = {};
  requester.ring.resize(blocks);
  responder = {};
  link = nullptr;
  for (std::uint32_t& record : records_) record = 0;
  engine.forget(*this);
  state_ = QpState::reset;
}

}  // namespace pollen::soft
