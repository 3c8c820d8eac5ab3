// Queue pairs and shared receive queues: made, looked at, destroyed.
#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>

#include <bit>
#include <cerrno>

#include "pollen/drivers/soft/uverbs/context.hpp"
#include "pollen/drivers/soft/uverbs/device_facts.hpp"

namespace pollen::soft::uverbs {

namespace {

std::shared_ptr<EventQueue> async_queue(const Command& command, std::uint16_t id) {
  const auto channel = fd_table::find_as<Channel>(static_cast<int>(command.number(id)));
  return channel == nullptr ? nullptr : channel->queue;
}

driver::Transport transport_of(std::uint64_t type) {
  switch (type) {
    case IBV_QPT_RC:
      return driver::Transport::rc;
    case IBV_QPT_UC:
      return driver::Transport::uc;
    case IBV_QPT_UD:
      return driver::Transport::ud;
    default:
      refuse(EOPNOTSUPP, "create a QP", "the software NIC has RC, UC and UD");
  }
}

bool is_ring(std::uint32_t entries) noexcept {
  return entries == 0 || (std::has_single_bit(entries) && entries <= facts::max_wrs);
}

}  // namespace

// --- shared receive queues --------------------------------------------------------------------

void Context::create_srq(Command& command) {
  if (command.number(UVERBS_ATTR_CREATE_SRQ_TYPE) != IBV_SRQT_BASIC)
    refuse(EOPNOTSUPP, "create a shared receive queue", "the software NIC has no XRC and no tag matching");
  const auto asked = command.in<mlx5_ib_create_srq>(UVERBS_ATTR_UHW_IN);
  PdObject* pd = find<PdObject>(command.number(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE), "protection domain");
  const auto max_wr = command.in<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_MAX_WR);
  const auto max_sge = command.in<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_MAX_SGE);
  if ((asked.flags & MLX5_SRQ_FLAG_SIGNATURE) != 0)
    refuse(EOPNOTSUPP, "create a shared receive queue", "the software NIC has no signatures");
  // libmlx5 says one less than there are, and a gather list that fills the WQE.
  const std::uint32_t entries = max_wr + 1;
  const std::uint32_t stride = std::bit_ceil((max_sge + 1) * queue::segment_bytes);
  if (!is_ring(entries) || entries == 0 || max_sge == 0 || max_sge > 31 || asked.buf_addr == 0 ||
      asked.db_addr == 0 || asked.db_addr % 4 != 0)
    refuse(EINVAL, "create a shared receive queue", "its memory or its size makes no sense");
  const auto limit = command.in<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_LIMIT);
  auto srq = std::make_unique<SrqObject>(pd, reinterpret_cast<const std::byte*>(asked.buf_addr), entries,
                                         stride, reinterpret_cast<const std::uint32_t*>(asked.db_addr));
  srq->number = nic().next_number();
  srq->max_wr = max_wr;
  srq->max_sge = max_sge;
  srq->limit = limit;
  srq->async.object = command.in<std::uint64_t>(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE);
  srq->async.queue = async_queue(command, UVERBS_ATTR_CREATE_SRQ_EVENT_FD);
  const mlx5_ib_create_srq_resp driver{srq->number, 0};
  command.out(UVERBS_ATTR_UHW_OUT, driver);
  command.out<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, max_wr);
  command.out<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, max_sge);
  command.out<std::uint32_t>(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, srq->number);
  command.out_number(UVERBS_ATTR_CREATE_SRQ_HANDLE, keep(std::move(srq)));
}

void Context::modify_srq(Command& command) {
  const auto asked = command.in<ib_uverbs_modify_srq>(UVERBS_ATTR_CORE_IN);
  SrqObject* srq = find<SrqObject>(asked.srq_handle, "shared receive queue");
  if ((asked.attr_mask & ~static_cast<std::uint32_t>(IBV_SRQ_LIMIT)) != 0)
    refuse(EINVAL, "modify a shared receive queue", "only its limit can be changed");
  if ((asked.attr_mask & IBV_SRQ_LIMIT) == 0) return;
  if (asked.srq_limit > srq->max_wr)
    refuse(EINVAL, "modify a shared receive queue", "the limit is beyond its size");
  srq->limit = asked.srq_limit;
  if (srq->limit == 0 || srq->available() >= srq->limit) return;
  srq->limit = 0;
  srq->async.async(IBV_EVENT_SRQ_LIMIT_REACHED);
}

void Context::query_srq(Command& command) {
  const auto asked = command.in<ib_uverbs_query_srq>(UVERBS_ATTR_CORE_IN);
  const SrqObject* srq = find<SrqObject>(asked.srq_handle, "shared receive queue");
  ib_uverbs_query_srq_resp out{};
  out.max_wr = srq->max_wr;
  out.max_sge = srq->max_sge;
  out.srq_limit = srq->limit;
  command.out(UVERBS_ATTR_CORE_OUT, out);
}

void Context::destroy_srq(Command& command) {
  const auto handle = command.number(UVERBS_ATTR_DESTROY_SRQ_HANDLE);
  SrqObject* srq = find<SrqObject>(handle, "shared receive queue");
  if (srq->users != 0) refuse(EBUSY, "destroy a shared receive queue", "a QP uses it");
  ib_uverbs_destroy_srq_resp out{};
  out.events_reported = srq->async.end();
  drop<SrqObject>(handle, "shared receive queue");
  command.out(UVERBS_ATTR_DESTROY_SRQ_RESP, out);
}

// --- queue pairs ------------------------------------------------------------------------------

void Context::create_qp(Command& command) {
  const driver::Transport transport = transport_of(command.number(UVERBS_ATTR_CREATE_QP_TYPE));
  const auto asked = command.in<mlx5_ib_create_qp>(UVERBS_ATTR_UHW_IN);
  PdObject* pd = find<PdObject>(command.number(UVERBS_ATTR_CREATE_QP_PD_HANDLE), "protection domain");
  auto* send_cq = find<CqObject>(command.number(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE), "completion queue");
  auto* recv_cq = find<CqObject>(command.number(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE), "completion queue");
  SrqObject* srq = nullptr;
  if (command.has(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE))
    srq = find<SrqObject>(command.number(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE), "shared receive queue");

  const auto flags = command.in<std::uint32_t>(UVERBS_ATTR_CREATE_QP_FLAGS);
  constexpr std::uint32_t allowed = MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_ALLOW_SCATTER_CQE |
                                    MLX5_QP_FLAG_UAR_PAGE_INDEX | MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC |
                                    MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC;
  if ((asked.flags & ~allowed) != 0 || (flags & ~std::uint32_t{IB_UVERBS_QP_CREATE_SQ_SIG_ALL}) != 0)
    refuse(EOPNOTSUPP, "create a QP",
           fmt::format("the software NIC lacks what flags {:#x} and {:#x} ask for", asked.flags, flags));
  if ((asked.flags & MLX5_QP_FLAG_UAR_PAGE_INDEX) == 0)
    refuse(EOPNOTSUPP, "create a QP", "it names no register page");
  const std::uint64_t recv_bytes = std::uint64_t{asked.rq_wqe_count} << (asked.rq_wqe_shift & 31);
  if (!is_ring(asked.sq_wqe_count) || !is_ring(asked.rq_wqe_count) ||
      asked.buf_addr % queue::block_bytes != 0 || asked.db_addr == 0 || asked.db_addr % 8 != 0 ||
      (asked.rq_wqe_count != 0 && (asked.rq_wqe_shift < 4 || asked.rq_wqe_shift > 9)) ||
      (asked.buf_addr == 0 && asked.sq_wqe_count + asked.rq_wqe_count != 0))
    refuse(EINVAL, "create a QP", "its memory or its sizes make no sense");

  QpMemory memory;
  memory.recv = reinterpret_cast<std::byte*>(asked.buf_addr);
  memory.recv_entries = srq != nullptr ? 0 : asked.rq_wqe_count;
  memory.recv_stride_bytes = 1U << (asked.rq_wqe_shift & 31);
  memory.send = memory.recv + recv_bytes;
  memory.send_blocks = asked.sq_wqe_count;
  memory.records = reinterpret_cast<std::uint32_t*>(asked.db_addr);
  memory.srq = srq;
  memory.user_index = asked.uidx;
  auto qp =
      std::make_unique<QpObject>(nic(), pd, send_cq, recv_cq, srq, asked.bfreg_index, transport, memory);
  qp->cap = command.in<ib_uverbs_qp_cap>(UVERBS_ATTR_CREATE_QP_CAP);
  if (srq == nullptr) {
    qp->cap.max_recv_wr = asked.rq_wqe_count;
    qp->cap.max_recv_sge = memory.recv_stride_bytes / queue::segment_bytes;
  }
  qp->signal_all = (flags & IB_UVERBS_QP_CREATE_SQ_SIG_ALL) != 0;
  qp->async.object = command.in<std::uint64_t>(UVERBS_ATTR_CREATE_QP_USER_HANDLE);
  qp->async.queue = async_queue(command, UVERBS_ATTR_CREATE_QP_EVENT_FD);
  mlx5_ib_create_qp_resp driver{};
  driver.bfreg_index = asked.bfreg_index;
  command.out(UVERBS_ATTR_UHW_OUT, driver);
  command.out(UVERBS_ATTR_CREATE_QP_RESP_CAP, qp->cap);
  command.out<std::uint32_t>(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, qp->qpn());
  command.out_number(UVERBS_ATTR_CREATE_QP_HANDLE, keep(std::move(qp)));
}

void Context::query_qp(Command& command) {
  const auto asked = command.in<ib_uverbs_query_qp>(UVERBS_ATTR_CORE_IN);
  const QpObject* qp = find<QpObject>(asked.qp_handle, "QP");
  const QpAttributes& a = qp->attributes;
  ib_uverbs_query_qp_resp out{};
  out.dest = a.dest;
  out.alt_dest = a.alt_dest;
  out.max_send_wr = qp->cap.max_send_wr;
  out.max_recv_wr = qp->cap.max_recv_wr;
  out.max_send_sge = qp->cap.max_send_sge;
  out.max_recv_sge = qp->cap.max_recv_sge;
  out.max_inline_data = qp->cap.max_inline_data;
  out.qkey = a.qkey;
  out.rq_psn = a.rq_psn;
  out.sq_psn = a.sq_psn;
  out.dest_qp_num = a.dest_qpn;
  out.qp_access_flags = a.access;
  out.pkey_index = a.pkey_index;
  out.alt_pkey_index = a.alt_pkey_index;
  out.qp_state = static_cast<std::uint8_t>(qp->state());
  out.cur_qp_state = out.qp_state;
  out.path_mtu = a.path_mtu;
  out.path_mig_state = a.path_mig_state;
  out.max_rd_atomic = a.max_rd_atomic;
  out.max_dest_rd_atomic = a.max_dest_rd_atomic;
  out.min_rnr_timer = a.min_rnr_timer;
  out.port_num = a.port;
  out.timeout = a.timeout;
  out.retry_cnt = a.retry_count;
  out.rnr_retry = a.rnr_retry;
  out.alt_port_num = a.alt_port;
  out.alt_timeout = a.alt_timeout;
  out.sq_sig_all = qp->signal_all ? 1 : 0;
  command.out(UVERBS_ATTR_CORE_OUT, out);
}

void Context::destroy_qp(Command& command) {
  const auto handle = command.number(UVERBS_ATTR_DESTROY_QP_HANDLE);
  QpObject* qp = find<QpObject>(handle, "QP");
  ib_uverbs_destroy_qp_resp out{};
  out.events_reported = qp->async.end();
  drop<QpObject>(handle, "QP");
  command.out(UVERBS_ATTR_DESTROY_QP_RESP, out);
}

}  // namespace pollen::soft::uverbs
