// Twin QPs on an mlx5 device: one that libmlx5 posts to, one whose rings are ours. Each is connected
// either to a QP that does not exist, with no timeout, so that nothing ever completes and the send
// rings can be compared at leisure, or to itself, so that everything does and the rings go round.
#pragma once

#include <doctest/doctest.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pollen/drivers/mlx5/mlx5.hpp"
#include "pollen/drivers/mlx5/port.hpp"
#include "pollen/queue/qp.hpp"

namespace twins {

using namespace pollen;

// The device, or null with a message when this host has none.
inline std::unique_ptr<driver::Device> open_device() {
  auto driver = mlx5::make_driver();
  if (driver->devices().empty()) {
    MESSAGE("skipped: no mlx5 device here; run it on a NIC, or through softmlx5");
    return nullptr;
  }
  return driver->open("");
}

enum class Peer { nobody, itself };

inline driver::RtrConfig rtr_to(Peer peer, std::uint32_t self, const driver::Device& device) {
  driver::RtrConfig rtr;
  rtr.path.remote_gid = device.query_port().gids.front().gid;
  rtr.path.local_gid_index = device.query_port().gids.front().index;
  rtr.remote_qpn = peer == Peer::nobody ? 0x123456 : self;
  return rtr;
}

// libmlx5's side: a QP for ibv_post_send, or for ibv_wr_*.
class Theirs {
 public:
  Theirs(ibv_context* context, ibv_pd* pd, const driver::Device& device, const driver::QpConfig& config,
         bool builder, Peer peer)
      : cq_(ibv_create_cq(context, 4096, nullptr, nullptr, 0)) {
    REQUIRE(cq_ != nullptr);
    ibv_qp_init_attr_ex attr{};
    attr.send_cq = cq_.get();
    attr.recv_cq = cq_.get();
    attr.cap = {config.send_wrs, config.recv_wrs, config.send_sge, config.recv_sge, config.inline_bytes};
    attr.qp_type = verbs::to_ibv_type(config.transport);
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = pd;
    if (builder) {
      attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
      if (config.transport == driver::Transport::rc)
        attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                               IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                               IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV;
    }
    qp_.reset(ibv_create_qp_ex(context, &attr));
    REQUIRE(qp_ != nullptr);
    modify(device, config, peer);
    mlx5dv_obj object{};
    object.qp = {.in = qp_.get(), .out = &view_};
    REQUIRE(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP) == 0);
  }

  ibv_qp* get() const { return qp_.get(); }
  ibv_cq* cq() const { return cq_.get(); }
  const std::byte* ring() const { return static_cast<const std::byte*>(view_.sq.buf); }
  std::uint32_t blocks() const { return view_.sq.wqe_cnt; }
  std::uint32_t send_record() const {
    return big_endian(static_cast<std::uint32_t>(view_.dbrec[MLX5_SND_DBR]));
  }
  const std::byte* registers() const { return static_cast<const std::byte*>(view_.bf.reg); }
  std::uint32_t half_bytes() const { return view_.bf.size; }

 private:
  void modify(const driver::Device& device, const driver::QpConfig& config, Peer peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    const bool ud = config.transport == driver::Transport::ud;
    attr.qkey = 0x11111111;
    attr.qp_access_flags = static_cast<unsigned>(verbs::to_ibv_access(driver::all_access));
    REQUIRE(ibv_modify_qp(get(), &attr,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                              (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
    const driver::RtrConfig rtr = rtr_to(peer, get()->qp_num, device);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = verbs::to_ibv_mtu(rtr.mtu_bytes);
    attr.dest_qp_num = rtr.remote_qpn;
    attr.max_dest_rd_atomic = 16;
    attr.min_rnr_timer = 12;
    attr.ah_attr = verbs::to_ibv_path(rtr.path, 1, true);
    const int rc_rtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    REQUIRE(ibv_modify_qp(get(), &attr, IBV_QP_STATE | (ud ? 0 : rc_rtr)) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 0;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 16;
    const int rc_rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    REQUIRE(ibv_modify_qp(get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (ud ? 0 : rc_rts)) == 0);
  }

  mlx5::Handle<ibv_cq> cq_;
  mlx5::Handle<ibv_qp> qp_;
  mlx5dv_qp view_{};
};

// Our side, by the driver under test.
class Ours {
 public:
  Ours(driver::Device& device, driver::Pd& pd, const driver::QpConfig& config, Peer peer)
      : port_(device.open_port()),
        cq_control_(port_->create_cq(4096)),
        cq_(cq_control_->ring()),
        qp_(port_->create_qp(pd, *cq_control_, *cq_control_, config), cq_, cq_, config.transport, 1U << 20) {
    driver::RtsConfig rts;
    rts.timeout = 0;
    if (config.transport == driver::Transport::ud)
      qp_.activate({.qkey = 0x11111111});
    else
      qp_.connect({.remote_access = driver::all_access}, rtr_to(peer, qp_.qpn(), device), rts);
  }

  driver::Port& port() { return *port_; }
  queue::Qp& qp() { return qp_; }
  queue::CompletionQueue& cq() { return cq_; }
  const std::byte* ring() const { return qp_.sq().ring().wqes; }
  std::uint32_t blocks() const { return qp_.sq().ring().blocks; }
  std::uint32_t send_record() const { return big_endian(*qp_.sq().ring().record); }
  const queue::Uar& uar() const { return *qp_.sq().ring().uar; }

 private:
  std::unique_ptr<driver::Port> port_;
  std::unique_ptr<driver::Cq> cq_control_;
  queue::CompletionQueue cq_;
  queue::Qp qp_;
};

}  // namespace twins
