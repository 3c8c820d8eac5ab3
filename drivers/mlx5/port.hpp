// A worker's share of an mlx5 device: its thread domain, its registers, and the queues on them.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/verbs/context.hpp"

namespace pollen::mlx5 {

struct Release {
  void operator()(ibv_pd* object) const noexcept { ibv_dealloc_pd(object); }
  void operator()(ibv_mr* object) const noexcept { ibv_dereg_mr(object); }
  void operator()(ibv_td* object) const noexcept { ibv_dealloc_td(object); }
  void operator()(ibv_cq* object) const noexcept { ibv_destroy_cq(object); }
  void operator()(ibv_qp* object) const noexcept { ibv_destroy_qp(object); }
  void operator()(ibv_ah* object) const noexcept { ibv_destroy_ah(object); }
  void operator()(ibv_comp_channel* object) const noexcept { ibv_destroy_comp_channel(object); }
};
template <typename T>
using Handle = std::unique_ptr<T, Release>;

class Pd final : public driver::Pd {
 public:
  explicit Pd(const verbs::Context& context);
  std::unique_ptr<driver::Region> register_memory(std::span<std::byte> memory, driver::Access access,
                                                  driver::SharedBacking backing) override;
  ibv_pd* get() const noexcept { return pd_.get(); }

 private:
  const verbs::Context& context_;
  Handle<ibv_pd> pd_;
};

class Cq;

class Port final : public driver::Port {
 public:
  Port(const verbs::Context& context, std::uint32_t port);
  ~Port() override;

  std::unique_ptr<driver::Cq> create_cq(std::uint32_t entries) override;
  std::unique_ptr<driver::Qp> create_qp(driver::Pd& pd, driver::Cq& send_cq, driver::Cq& recv_cq,
                                        const driver::QpConfig& config) override;
  queue::Address create_address(driver::Pd& pd, const driver::PathConfig& path, std::uint32_t qpn,
                                std::uint32_t qkey) override;
  driver::Progress progress() noexcept override { return {}; }  // the NIC needs nobody
  std::optional<driver::Event> next_event() override { return context_.next_event(); }
  int wake_fd() const noexcept override { return channel_->fd; }
  bool arm() noexcept override;
  void disarm() noexcept override;

  // --- its queues' ---
  const verbs::Context& context() const noexcept { return context_; }
  std::uint32_t number() const noexcept { return number_; }
  bool needs_grh() const noexcept { return needs_grh_; }
  // The registers at `address`, the same object for all QPs that share them.
  queue::Uar& uar_at(void* address, std::uint32_t half_bytes);
  void add(Cq& cq) { cqs_.push_back(&cq); }
  void remove(Cq& cq) noexcept { std::erase(cqs_, &cq); }

 private:
  ibv_pd* parent_of(Pd& pd);

  const verbs::Context& context_;
  std::uint32_t number_;
  bool needs_grh_;
  Handle<ibv_td> thread_domain_;
  Handle<ibv_comp_channel> channel_;
  std::map<ibv_pd*, Handle<ibv_pd>> parents_;  // thread domain and protection domain in one, by the latter
  std::map<void*, std::unique_ptr<queue::Uar>> uars_;
  std::vector<Handle<ibv_ah>> addresses_;
  std::vector<Cq*> cqs_;
};

class Cq final : public driver::Cq {
 public:
  Cq(Port& port, ibv_comp_channel* channel, std::uint32_t entries);
  ~Cq() override;

  ibv_cq* get() const noexcept { return cq_.get(); }
  // Asks for an event at the next CQE. False: there is one already.
  bool arm() noexcept;
  // An event of this queue was read.
  void on_event() noexcept { ++events_; }

 private:
  Port& port_;
  Handle<ibv_cq> cq_;
  std::uint32_t* arm_record_ = nullptr;
  std::byte* doorbell_ = nullptr;
  std::uint32_t number_ = 0;
  std::uint32_t arm_sequence_ = 0;
  unsigned events_ = 0;
};

class Qp final : public driver::Qp {
 public:
  Qp(Port& port, ibv_pd* parent, Cq& send_cq, Cq& recv_cq, const driver::QpConfig& config);

  void to_init(const driver::InitConfig& config) override {
    verbs::to_init(context(), qp_.get(), port_.number(), config);
  }
  void to_rtr(const driver::RtrConfig& config) override {
    verbs::to_rtr(context(), qp_.get(), port_.number(), port_.needs_grh(), config);
  }
  void to_rts(const driver::RtsConfig& config) override { verbs::to_rts(context(), qp_.get(), config); }
  void to_error() override { verbs::to_state(context(), qp_.get(), IBV_QPS_ERR); }
  void to_reset() override;
  driver::QpState state() const override;

 private:
  const verbs::Context& context() const noexcept { return port_.context(); }

  Port& port_;
  Handle<ibv_qp> qp_;
};

}  // namespace pollen::mlx5
