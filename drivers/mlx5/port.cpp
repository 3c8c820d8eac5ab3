#include "pollen/drivers/mlx5/port.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pollen/base/bytes.hpp"
#include "pollen/base/error.hpp"

namespace pollen::mlx5 {

namespace {

class Region final : public driver::Region {
 public:
  Region(const verbs::Context& context, ibv_pd* pd, std::span<std::byte> memory, driver::Access access)
      : mr_(ibv_reg_mr(pd, memory.data(), memory.size(),
                       static_cast<unsigned>(verbs::to_ibv_access(access)))) {
    if (mr_ == nullptr) context.fail(errno, fmt::format("register {} KiB of memory", memory.size() >> 10));
    address_ = memory.data();
    bytes_ = memory.size();
    lkey_ = mr_->lkey;
    rkey_ = mr_->rkey;
  }

 private:
  Handle<ibv_mr> mr_;
};

}  // namespace

Pd::Pd(const verbs::Context& context) : context_(context), pd_(ibv_alloc_pd(context.get())) {
  if (pd_ == nullptr) context.fail(errno, "create a protection domain");
}

std::unique_ptr<driver::Region> Pd::register_memory(std::span<std::byte> memory, driver::Access access,
                                                    driver::SharedBacking) {
  return std::make_unique<Region>(context_, pd_.get(), memory, access);
}

// --- Port -------------------------------------------------------------------------------------

Port::Port(const verbs::Context& context, std::uint32_t port) : context_(context), number_(port) {
  const driver::PortInfo info = context.query_port(port);
  if (!info.active)
    throw Error(ENETDOWN,
                {.attempted = fmt::format("use port {}", port),
                 .on = context.name(),
                 .why = "the port is down",
                 .remedy = "Bring it up (ip link set … up; check cable and switch), or name another port"});
  needs_grh_ = info.needs_grh;
  ibv_td_init_attr attr{};
  thread_domain_.reset(ibv_alloc_td(context.get(), &attr));
  if (thread_domain_ == nullptr) context.fail(errno, "create a thread domain");
  channel_.reset(ibv_create_comp_channel(context.get()));
  if (channel_ == nullptr) context.fail(errno, "create a completion channel");
  verbs::make_nonblocking(channel_->fd);
}

Port::~Port() = default;

ibv_pd* Port::parent_of(Pd& pd) {
  Handle<ibv_pd>& parent = parents_[pd.get()];
  if (parent == nullptr) {
    ibv_parent_domain_init_attr attr{};
    attr.pd = pd.get();
    attr.td = thread_domain_.get();
    parent.reset(ibv_alloc_parent_domain(context_.get(), &attr));
    if (parent == nullptr) context_.fail(errno, "create a parent domain");
  }
  return parent.get();
}

queue::Uar& Port::uar_at(void* address, std::uint32_t half_bytes) {
  auto& uar = uars_[address];
  if (uar == nullptr)
    uar = std::make_unique<queue::Uar>(queue::Uar{static_cast<std::byte*>(address), half_bytes, 0});
  return *uar;
}

std::unique_ptr<driver::Cq> Port::create_cq(std::uint32_t entries) {
  const std::uint32_t most = context_.limits().max_cq_entries;
  if (entries == 0 || entries > most)
    throw Error(EINVAL, {.attempted = fmt::format("create a completion queue of {}", entries),
                         .on = context_.name(),
                         .why = fmt::format("the device allows 1 to {}", most),
                         .remedy = "Use fewer or shallower QPs on this worker"});
  return std::make_unique<Cq>(*this, channel_.get(), entries);
}

std::unique_ptr<driver::Qp> Port::create_qp(driver::Pd& pd, driver::Cq& send_cq, driver::Cq& recv_cq,
                                            const driver::QpConfig& config) {
  return std::make_unique<Qp>(*this, parent_of(static_cast<Pd&>(pd)), static_cast<Cq&>(send_cq),
                              static_cast<Cq&>(recv_cq), config);
}

queue::Address Port::create_address(driver::Pd& pd, const driver::PathConfig& path, std::uint32_t qpn,
                                    std::uint32_t qkey) {
  ibv_ah_attr attr = verbs::to_ibv_path(path, number_, needs_grh_);
  Handle<ibv_ah> ah(ibv_create_ah(static_cast<Pd&>(pd).get(), &attr));
  if (ah == nullptr)
    context_.fail(errno, fmt::format("create an address for {}", to_string(path.remote_gid)),
                  "Check that the peer is reachable on the port's network");
  mlx5dv_ah view{};
  mlx5dv_obj object{};
  object.ah = {.in = ah.get(), .out = &view};
  mlx5dv_init_obj(&object, MLX5DV_OBJ_AH);
  queue::Address address{};
  std::memcpy(&address.segment.av, view.av, sizeof address.segment.av);
  address.segment.av.key.qkey.qkey = big_endian(qkey);
  // The segment holds the whole path, not a reference to the object, and says so by its top bit.
  address.segment.av.dqp_dct = big_endian(qpn | 1U << 31);
  addresses_.push_back(std::move(ah));
  return address;
}

bool Port::arm() noexcept {
  return std::all_of(cqs_.begin(), cqs_.end(), [](Cq* cq) { return cq->arm(); });
}

void Port::disarm() noexcept {
  ibv_cq* of = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &of, &context) == 0) static_cast<Cq*>(context)->on_event();
}

// --- Cq ---------------------------------------------------------------------------------------

Cq::Cq(Port& port, ibv_comp_channel* channel, std::uint32_t entries) : port_(port) {
  // Single-threaded: libmlx5 takes no lock either. CQEs of 64 bytes, never compressed.
  ibv_cq_init_attr_ex attr{};
  attr.cqe = entries;
  attr.cq_context = this;
  attr.channel = channel;
  attr.wc_flags = IBV_WC_STANDARD_FLAGS;
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  mlx5dv_cq_init_attr mlx5_attr{};
  mlx5_attr.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
  mlx5_attr.cqe_size = queue::cqe_bytes;
  cq_.reset(ibv_cq_ex_to_cq(mlx5dv_create_cq(port.context().get(), &attr, &mlx5_attr)));
  if (cq_ == nullptr) port.context().fail(errno, fmt::format("create a completion queue of {}", entries));

  mlx5dv_cq view{};
  mlx5dv_obj object{};
  object.cq = {.in = cq_.get(), .out = &view};
  mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ);
  if (view.cqe_size != queue::cqe_bytes)
    throw Error(EPROTO,
                {.attempted = "take over a completion queue",
                 .on = port.context().name(),
                 .why = fmt::format("its entries have {} bytes, not {}", view.cqe_size, queue::cqe_bytes),
                 .remedy = "Unset MLX5_CQE_SIZE"});
  ring_ = {static_cast<std::byte*>(view.buf), view.cqe_cnt, reinterpret_cast<std::uint32_t*>(view.dbrec)};
  arm_record_ = reinterpret_cast<std::uint32_t*>(view.dbrec) + 1;
  doorbell_ = static_cast<std::byte*>(view.cq_uar) + 0x20;  // MLX5_CQ_DOORBELL
  number_ = view.cqn;
  port_.add(*this);
}

Cq::~Cq() {
  port_.disarm();
  port_.remove(*this);
  // Events that were read and not acknowledged would hold up the destruction for ever.
  if (events_ != 0) ibv_ack_cq_events(cq_.get(), events_);
}

// libmlx5 does not know how far we have polled, so ibv_req_notify_cq would arm at a stale index.
//   record    sequence:2 at bit 28, solicited-only at bit 24 (0: any), consumer index:24
//   doorbell  the same word, then the queue's number, as one 8-byte store
bool Cq::arm() noexcept {
  const std::uint32_t consumer = big_endian(__atomic_load_n(ring_.record, __ATOMIC_RELAXED)) & 0xffffff;
  const std::uint32_t command = (arm_sequence_ & 3) << 28 | consumer;
  __atomic_store_n(arm_record_, big_endian(command), __ATOMIC_RELAXED);
  queue::record_before_uar();
  std::uint64_t word = 0;
  std::byte bytes[sizeof word];
  queue::store_be(bytes, command);
  queue::store_be(bytes + 4, number_);
  std::memcpy(&word, bytes, sizeof word);
  queue::store_register(doorbell_, word);
  queue::flush_uar();
  // What came before the doorbell raises no event.
  const auto* next =
      reinterpret_cast<const queue::Cqe*>(ring_.cqes + (consumer & (ring_.entries - 1)) * queue::cqe_bytes);
  const std::uint8_t op_own = __atomic_load_n(&next->op_own, __ATOMIC_ACQUIRE);
  const bool ready = (op_own >> 4) != MLX5_CQE_INVALID &&
                     ((op_own & queue::cqe_owner) != 0) == ((consumer & ring_.entries) != 0);
  return !ready;
}

// --- Qp ---------------------------------------------------------------------------------------

Qp::Qp(Port& port, ibv_pd* parent, Cq& send_cq, Cq& recv_cq, const driver::QpConfig& config) : port_(port) {
  ibv_qp_init_attr_ex attr{};
  attr.send_cq = send_cq.get();
  attr.recv_cq = recv_cq.get();
  attr.cap = {.max_send_wr = config.send_wrs,
              .max_recv_wr = config.recv_wrs,
              .max_send_sge = config.send_sge,
              .max_recv_sge = config.recv_sge,
              .max_inline_data = config.inline_bytes};
  attr.qp_type = verbs::to_ibv_type(config.transport);
  attr.comp_mask = IBV_QP_INIT_ATTR_PD;
  attr.pd = parent;
  // Received data belongs in its buffer, not in the CQE.
  mlx5dv_qp_init_attr mlx5_attr{};
  mlx5_attr.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
  mlx5_attr.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
  qp_.reset(mlx5dv_create_qp(context().get(), &attr, &mlx5_attr));
  if (qp_ == nullptr)
    context().fail(
        errno,
        fmt::format("create a {} QP of {} send and {} receive requests, {} and {} gather entries, {} "
                    "inline bytes",
                    name(config.transport), config.send_wrs, config.recv_wrs, config.send_sge,
                    config.recv_sge, config.inline_bytes),
        "Ask for less of the largest of these; the device's limits are in ibv_devinfo -v");

  mlx5dv_qp view{};
  mlx5dv_obj object{};
  object.qp = {.in = qp_.get(), .out = &view};
  mlx5dv_init_obj(&object, MLX5DV_OBJ_QP);
  auto* records = reinterpret_cast<std::uint32_t*>(view.dbrec);
  send_ = {.wqes = static_cast<std::byte*>(view.sq.buf),
           .blocks = view.sq.wqe_cnt,
           .record = records + MLX5_SND_DBR,
           .uar = &port.uar_at(view.bf.reg, view.bf.size),
           .hook = {},
           .qpn = qp_->qp_num,
           .max_inline_bytes = attr.cap.max_inline_data,
           .max_sge = attr.cap.max_send_sge};
  recv_ = {.wqes = static_cast<std::byte*>(view.rq.buf),
           .entries = view.rq.wqe_cnt,
           .stride_bytes = view.rq.stride,
           .record = records + MLX5_RCV_DBR};
}

void Qp::to_reset() { verbs::to_state(context(), qp_.get(), IBV_QPS_RESET); }

driver::QpState Qp::state() const {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (const int failed = ibv_query_qp(qp_.get(), &attr, IBV_QP_STATE, &init); failed != 0)
    context().fail(failed, fmt::format("query QP {}", qp_->qp_num));
  return verbs::state_of(attr.qp_state);
}

}  // namespace pollen::mlx5
