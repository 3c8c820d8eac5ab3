// A QP's states: which attributes each move needs and allows (IBTA, "Modify QP"), what they may be,
// and the move itself.
#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "pollen/drivers/soft/uverbs/context.hpp"

namespace pollen::soft::uverbs {

namespace {

using driver::QpState;
using driver::Transport;

constexpr std::uint32_t av = IBV_QP_AV;
constexpr std::uint32_t pkey = IBV_QP_PKEY_INDEX;
constexpr std::uint32_t port = IBV_QP_PORT;
constexpr std::uint32_t qkey = IBV_QP_QKEY;
constexpr std::uint32_t access = IBV_QP_ACCESS_FLAGS;
constexpr std::uint32_t current = IBV_QP_CUR_STATE;
constexpr std::uint32_t alt = IBV_QP_ALT_PATH;
constexpr std::uint32_t mig = IBV_QP_PATH_MIG_STATE;
constexpr std::uint32_t rnr_timer = IBV_QP_MIN_RNR_TIMER;
constexpr std::uint32_t to_peer = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
constexpr std::uint32_t retries =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

struct Move {
  std::uint32_t needs;
  std::uint32_t allows;
};

// No value: there is no such move.
std::optional<Move> move_of(QpState from, QpState to, Transport transport) noexcept {
  const bool rc = transport == Transport::rc;
  const bool ud = transport == Transport::ud;
  const std::uint32_t first = pkey | port | (ud ? qkey : access);
  const std::uint32_t running = current | (ud ? qkey : access | alt | mig) | (rc ? rnr_timer : 0U);
  if (to == QpState::reset || to == QpState::error) return Move{0, current};
  if (from == QpState::reset && to == QpState::init) return Move{first, 0};
  if (from == QpState::init && to == QpState::init) return Move{0, first};
  if (from == QpState::init && to == QpState::rtr)
    return Move{(ud ? 0U : to_peer) | (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | rnr_timer : 0U),
                pkey | (ud ? qkey : alt | access)};
  if (from == QpState::rtr && to == QpState::rts) return Move{IBV_QP_SQ_PSN | (rc ? retries : 0U), running};
  if (from == QpState::rts && to == QpState::rts) return Move{0, running};
  if (from == QpState::rts && to == QpState::sqd) return Move{0, IBV_QP_EN_SQD_ASYNC_NOTIFY};
  if (from == QpState::sqd && to == QpState::rts) return Move{0, running};
  if (from == QpState::sqd && to == QpState::sqd)
    return Move{0, pkey | (ud ? qkey : av | alt | access | mig) |
                       (rc ? port | retries | IBV_QP_MAX_DEST_RD_ATOMIC | rnr_timer : 0U)};
  return std::nullopt;
}

void check_range(const char* what, std::uint32_t value, std::uint32_t least, std::uint32_t most) {
  if (value < least || value > most)
    refuse(EINVAL, "modify a QP", fmt::format("{} {} is not from {} to {}", what, value, least, most));
}

void check_path(const ib_uverbs_qp_dest& path) {
  if (path.is_global == 0) refuse(EINVAL, "modify a QP", "on Ethernet a path needs a GID");
  check_range("the GID index", path.sgid_index, 0, gid_count - 1);
  check_range("the path's port", path.port_num, 1, 1);
}

// What is named by the mask is checked, then set.
void set(QpAttributes& a, const ib_uverbs_modify_qp& in) {
  const auto has = [&](std::uint32_t bit) { return (in.attr_mask & bit) != 0; };
  if (has(port)) check_range("the port", in.port_num, 1, 1);
  if (has(pkey)) check_range("the partition key index", in.pkey_index, 0, 0);
  if (has(av)) check_path(in.dest);
  if (has(alt)) check_path(in.alt_dest);
  if (has(IBV_QP_PATH_MTU)) check_range("the path MTU's code", in.path_mtu, IBV_MTU_256, IBV_MTU_4096);
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC)) check_range("the read depth", in.max_dest_rd_atomic, 0, 16);
  if (has(IBV_QP_MAX_QP_RD_ATOMIC)) check_range("the read depth", in.max_rd_atomic, 0, 16);
  if (has(IBV_QP_TIMEOUT)) check_range("the timeout's code", in.timeout, 0, 31);
  if (has(IBV_QP_RETRY_CNT)) check_range("the retry count", in.retry_cnt, 0, 7);
  if (has(IBV_QP_RNR_RETRY)) check_range("the RNR retry count", in.rnr_retry, 0, 7);
  if (has(rnr_timer)) check_range("the RNR timer's code", in.min_rnr_timer, 0, 31);
  if (has(IBV_QP_DEST_QPN)) check_range("the peer's QP number", in.dest_qp_num, 0, psn_mask);

  if (has(port)) a.port = in.port_num;
  if (has(pkey)) a.pkey_index = in.pkey_index;
  if (has(qkey)) a.qkey = in.qkey;
  if (has(access)) a.access = in.qp_access_flags;
  if (has(av)) a.dest = in.dest;
  if (has(alt)) {
    a.alt_dest = in.alt_dest;
    a.alt_port = in.alt_port_num;
    a.alt_timeout = in.alt_timeout;
    a.alt_pkey_index = in.alt_pkey_index;
  }
  if (has(mig)) a.path_mig_state = in.path_mig_state;
  if (has(IBV_QP_PATH_MTU)) a.path_mtu = in.path_mtu;
  if (has(IBV_QP_DEST_QPN)) a.dest_qpn = in.dest_qp_num;
  if (has(IBV_QP_RQ_PSN)) a.rq_psn = in.rq_psn & psn_mask;
  if (has(IBV_QP_SQ_PSN)) a.sq_psn = in.sq_psn & psn_mask;
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC)) a.max_dest_rd_atomic = in.max_dest_rd_atomic;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC)) a.max_rd_atomic = in.max_rd_atomic;
  if (has(IBV_QP_TIMEOUT)) a.timeout = in.timeout;
  if (has(IBV_QP_RETRY_CNT)) a.retry_count = in.retry_cnt;
  if (has(IBV_QP_RNR_RETRY)) a.rnr_retry = in.rnr_retry;
  if (has(rnr_timer)) a.min_rnr_timer = in.min_rnr_timer;
}

driver::InitConfig init_of(const QpAttributes& a) noexcept {
  return {
      .remote_access = static_cast<driver::Access>(a.access & static_cast<std::uint32_t>(driver::all_access)),
      .qkey = a.qkey};
}

driver::RtrConfig rtr_of(const QpAttributes& a) noexcept {
  driver::RtrConfig rtr;
  std::memcpy(rtr.path.remote_gid.bytes.data(), a.dest.dgid, sizeof a.dest.dgid);
  rtr.path.local_gid_index = a.dest.sgid_index;
  rtr.path.hop_limit = a.dest.hop_limit;
  rtr.path.traffic_class = a.dest.traffic_class;
  rtr.path.service_level = a.dest.sl;
  rtr.remote_qpn = a.dest_qpn;
  rtr.remote_psn = a.rq_psn;
  rtr.mtu_bytes = 128U << a.path_mtu;
  rtr.reads_in = a.max_dest_rd_atomic;
  rtr.min_rnr_timer = a.min_rnr_timer;
  return rtr;
}

// Below this the peer's thread may just not have had its turn: local_ca_ack_delay says so.
constexpr std::uint8_t least_timeout = 16;

driver::RtsConfig rts_of(const QpAttributes& a) noexcept {
  return {.local_psn = a.sq_psn,
          .reads_out = a.max_rd_atomic,
          .timeout = a.timeout == 0 ? std::uint8_t{0} : std::max(a.timeout, least_timeout),
          .retry_count = a.retry_count,
          .rnr_retry = a.rnr_retry};
}

void move(QpObject& qp, QpState to) {
  const QpAttributes& a = qp.attributes;
  const QpState from = qp.state();
  if (to == QpState::reset) {
    qp.to_reset();
    qp.attributes = {};
  } else if (to == QpState::error) {
    qp.to_error();
  } else if (from == QpState::reset) {
    qp.to_init(init_of(a));
  } else if (from == QpState::init && to == QpState::rtr) {
    qp.init = init_of(a);
    qp.to_rtr(rtr_of(a));
  } else if (from == QpState::rtr && to == QpState::rts) {
    qp.init = init_of(a);
    qp.rtr.min_rnr_timer = a.min_rnr_timer;
    qp.to_rts(rts_of(a));
  } else {
    // Attributes that can change while the QP runs.
    qp.init = init_of(a);
    qp.rtr.min_rnr_timer = a.min_rnr_timer;
    qp.rts = rts_of(a);
    if (from == QpState::rts && to == QpState::sqd) qp.pause();
    if (from == QpState::sqd && to == QpState::rts) qp.resume();
  }
}

}  // namespace

void Context::modify_qp(Command& command) {
  const auto in = command.in<ib_uverbs_modify_qp>(UVERBS_ATTR_CORE_IN);
  QpObject* qp = find<QpObject>(in.qp_handle, "QP");
  const QpState from = qp->state();
  if ((in.attr_mask & IBV_QP_CUR_STATE) != 0 && in.cur_qp_state != static_cast<std::uint8_t>(from))
    refuse(EINVAL, "modify a QP", fmt::format("it is in state {}", name(from)));
  QpState to = from;
  if ((in.attr_mask & IBV_QP_STATE) != 0) {
    if (in.qp_state > IBV_QPS_ERR) refuse(EINVAL, "modify a QP", "there is no such state");
    to = static_cast<QpState>(in.qp_state);
  }
  const std::uint32_t mask = in.attr_mask & ~static_cast<std::uint32_t>(IBV_QP_STATE);
  const auto rule = move_of(from, to, qp->transport);
  if (!rule)
    refuse(EINVAL, "modify a QP", fmt::format("there is no move from {} to {}", name(from), name(to)));
  if ((mask & rule->needs) != rule->needs || (mask & ~(rule->needs | rule->allows)) != 0)
    refuse(EINVAL, "modify a QP",
           fmt::format("the move from {} to {} needs attributes {:#x} and allows {:#x}; these are {:#x}",
                       name(from), name(to), rule->needs, rule->allows, mask));
  set(qp->attributes, in);
  move(*qp, to);
}

}  // namespace pollen::soft::uverbs
