#include "pollen/drivers/verbs/verbs_qp.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "pollen/base/error.hpp"
#include "pollen/drivers/verbs/verbs_port.hpp"

namespace pollen::verbs {

namespace {

using driver::QpState;
using driver::Transport;

void ring_doorbell(void* qp, const queue::CtrlSegment*) noexcept { static_cast<VerbsQp*>(qp)->doorbell(); }

}  // namespace

VerbsQp::VerbsQp(VerbsPort& port, PdHandle pd, VerbsCq& send_cq, VerbsCq& recv_cq,
                 const driver::QpConfig& config)
    : port_(port), pd_(std::move(pd)), send_cq_(send_cq), recv_cq_(recv_cq), transport_(config.transport) {
  const ibv_qp_cap given = create(config);
  allocate(config);
  slot_ = port.add(*this);
  try {
    sender_.emplace(send_, SenderSetup{.qp = handle_.get(),
                                       .pd = pd_,
                                       .transport = transport_,
                                       .cq = send_cq,
                                       .chain = port.chain(),
                                       .addresses = port.addresses(),
                                       .wr_tag = tag(false),
                                       .provider_wrs = given.max_send_wr,
                                       .provider_sge = given.max_send_sge,
                                       .provider_inline_bytes = given.max_inline_data,
                                       .max_message_bytes = transport_ == Transport::ud
                                                                ? port.mtu_bytes()
                                                                : port.device().limits().max_message_bytes,
                                       .atomics = port.device().has_atomics()});
    receiver_.emplace(recv_, ReceiverSetup{.qp = handle_.get(),
                                           .qpn = send_.qpn,
                                           .cq = recv_cq,
                                           .chain = port.chain(),
                                           .wr_tag = tag(true),
                                           .provider_wrs = given.max_recv_wr});
  } catch (...) {
    port.remove(slot_);
    throw;
  }
}

VerbsQp::~VerbsQp() {
  port_.remove(slot_);
  // Before the sender's buffers: requests under way read them.
  handle_.reset();
}

std::uint64_t VerbsQp::tag(bool receive) const noexcept {
  return std::uint64_t{slot_} << 32 | std::uint64_t{life_} << 24 | (receive ? tag_receive : 0);
}

ibv_qp_cap VerbsQp::create(const driver::QpConfig& config) {
  ibv_qp_init_attr attributes{};
  attributes.qp_context = this;
  attributes.send_cq = send_cq_.handle();
  attributes.recv_cq = recv_cq_.handle();
  attributes.qp_type = to_ibv_type(transport_);
  attributes.cap = {.max_send_wr = config.send_wrs,
                    .max_recv_wr = config.recv_wrs,
                    .max_send_sge = std::max(config.send_sge, 1U),
                    .max_recv_sge = std::max(config.recv_sge, 1U),
                    .max_inline_data = config.inline_bytes};
  // No call tells how much a provider takes inline: ask for less until it agrees.
  for (std::uint32_t bytes = config.inline_bytes;; bytes = bytes > 64 ? bytes / 2 : 0) {
    ibv_qp_init_attr attempt = attributes;
    attempt.cap.max_inline_data = bytes;
    handle_.reset(ibv_create_qp(pd_.get(), &attempt));
    if (handle_ != nullptr) return attempt.cap;
    if (bytes == 0) break;
  }
  const int errnum = errno;
  const std::string text =
      fmt::format("create a {} QP for {} sends of {} pieces and {} receives of {}", name(transport_),
                  config.send_wrs, config.send_sge, config.recv_wrs, config.recv_sge);
  if (errnum != ENOMEM && transport_ != Transport::rc)
    port_.device().context().fail(errnum, text,
                                  fmt::format("The device may lack {}: use RC", name(transport_)));
  port_.device().context().fail(errnum, text, errnum == ENOMEM ? "" : "Ask for smaller queues");
}

void VerbsQp::allocate(const driver::QpConfig& config) {
  // As libmlx5 sizes its rings: room for send_wrs requests of the largest kind.
  const std::uint32_t head = transport_ == Transport::ud ? 4 : 2;
  const std::uint32_t data =
      std::max(std::max(config.send_sge, 1U),
               config.inline_bytes == 0 ? 1 : queue::inline_segments(config.inline_bytes));
  const std::uint32_t per_request = queue::blocks_of_segments(std::max(head + data, 4U));
  const std::uint32_t blocks = std::min(std::bit_ceil(config.send_wrs * per_request), queue::max_send_blocks);
  const std::uint32_t entries = config.recv_wrs == 0 ? 0 : std::bit_ceil(config.recv_wrs);
  const std::uint32_t stride = std::bit_ceil(std::max(config.recv_sge, 1U)) * queue::segment_bytes;
  send_memory_.resize(blocks);
  recv_memory_.resize((std::size_t{entries} * stride + sizeof(Block) - 1) / sizeof(Block));
  send_ = {.wqes = send_memory_.data()->bytes,
           .blocks = blocks,
           .record = &records_[MLX5_SND_DBR],
           .hook = {&ring_doorbell, this},
           .qpn = handle_->qp_num,
           .max_inline_bytes = config.inline_bytes,
           .max_sge = config.send_sge};
  recv_ = {.wqes = entries == 0 ? nullptr : recv_memory_.data()->bytes,
           .entries = entries,
           .stride_bytes = stride,
           .record = &records_[MLX5_RCV_DBR]};
}

void VerbsQp::to_init(const driver::InitConfig& config) {
  driver::InitConfig given = config;
  if (!port_.device().has_atomics())
    given.remote_access =
        static_cast<driver::Access>(static_cast<std::uint32_t>(config.remote_access) &
                                    ~static_cast<std::uint32_t>(driver::Access::remote_atomic));
  verbs::to_init(context(), handle_.get(), port_.number(), given);
  receiver_->start();
  receiver_->advance();
}

void VerbsQp::require(bool holds, std::string why, const char* remedy) const {
  if (holds) return;
  throw Error(EINVAL, {.attempted = fmt::format("connect QP {}", qpn()),
                       .on = context().name(),
                       .why = std::move(why),
                       .remedy = remedy});
}

void VerbsQp::to_rtr(const driver::RtrConfig& config) {
  const driver::Limits& limits = port_.device().limits();
  if (transport_ != Transport::ud) {
    require(std::has_single_bit(config.mtu_bytes) && config.mtu_bytes >= 256 && config.mtu_bytes <= 4096,
            fmt::format("an MTU of {} bytes does not exist", config.mtu_bytes),
            "It is 256, 512, 1024, 2048 or 4096");
    require(config.mtu_bytes <= port_.mtu_bytes(),
            fmt::format("the MTU {} is beyond the port's {}", config.mtu_bytes, port_.mtu_bytes()),
            "Ask for less, or raise the network interface's MTU");
    require(((config.remote_qpn | config.remote_psn) >> 24) == 0,
            "the peer's QP number or PSN has more than 24 bits",
            "The handshake gave nonsense: connect again");
  }
  if (transport_ == Transport::rc)
    require(config.reads_in <= limits.max_reads_in,
            fmt::format("{} incoming READs at a time are beyond the device's {}", config.reads_in,
                        limits.max_reads_in),
            "Ask for less");
  verbs::to_rtr(context(), handle_.get(), port_.number(), port_.needs_grh(), config);
}

void VerbsQp::to_rts(const driver::RtsConfig& config) {
  const std::uint32_t most = port_.device().limits().max_reads_out;
  if (transport_ == Transport::rc)
    require(config.reads_out <= most,
            fmt::format("{} outstanding READs are beyond the device's {}", config.reads_out, most),
            "Ask for less");
  driver::RtsConfig given = config;
  given.local_psn &= 0xffffff;
  verbs::to_rts(context(), handle_.get(), given);
  sender_->start();
  sender_->advance();
}

void VerbsQp::to_error() {
  verbs::to_state(context(), handle_.get(), IBV_QPS_ERR);
  sender_->fail();
  receiver_->fail();
}

void VerbsQp::to_reset() {
  verbs::to_state(context(), handle_.get(), IBV_QPS_RESET);
  ++life_;
  sender_->reset(tag(false));
  receiver_->reset(tag(true));
  for (std::uint32_t& record : records_) record = 0;
}

QpState VerbsQp::state() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr ignored{};
  if (const int failed = ibv_query_qp(handle_.get(), &attributes, IBV_QP_STATE, &ignored); failed != 0)
    context().fail(failed, fmt::format("query QP {}", qpn()));
  return state_of(attributes.qp_state);
}

const Context& VerbsQp::context() const noexcept { return port_.device().context(); }

void VerbsQp::fail() noexcept {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(handle_.get(), &attributes, IBV_QP_STATE);  // it may be there already
  sender_->fail();
  receiver_->fail();
}

void VerbsQp::doorbell() noexcept {
  // A buffer that was published first is posted first: the answer to what is sent may need it.
  receiver_->advance();
  sender_->doorbell();
  if (sender_->take_refusal()) fail();
}

bool VerbsQp::advance() noexcept {
  const bool received = receiver_->advance();
  const bool sent = sender_->advance();
  if (sender_->take_refusal()) fail();
  return received || sent;
}

void VerbsQp::complete(const ibv_wc& completion) noexcept {
  if (life_of(completion.wr_id) != life_) return;
  const bool receive = (completion.wr_id & tag_receive) != 0;
  if (receive)
    receiver_->complete(completion);
  else
    sender_->complete(static_cast<std::uint16_t>(completion.wr_id), completion.status, completion.vendor_err);
  if (completion.status == IBV_WC_SUCCESS) [[likely]]
    return;
  // An error takes both halves along, but for a send of UC or UD, which stops only sends.
  if (receive || transport_ == Transport::rc) {
    sender_->fail();
    receiver_->fail();
  }
}

}  // namespace pollen::verbs
