// A queue pair: a send queue and a receive queue over a driver's rings, and the control path that
// connects, drains and ends it.
//
// Ownership: the Qp owns the driver's object; the completion queues must outlive it. Thread
// rules: one thread, the owner, for everything. Errors: the control path throws Error; nothing
// on the data path does.
#pragma once

#include <memory>
#include <span>

#include "pollen/drivers/driver.hpp"
#include "pollen/queue/completion_queue.hpp"
#include "pollen/queue/recv_queue.hpp"
#include "pollen/queue/send_burst.hpp"
#include "pollen/queue/send_queue.hpp"

namespace pollen::queue {

class Qp {
 public:
  // signal_every: of so many requests at most one is without a completion of its own; 0: the
  // queue decides. Both completion queues may be the same one.
  Qp(std::unique_ptr<driver::Qp> control, CompletionQueue& send_cq, CompletionQueue& recv_cq,
     driver::Transport transport, std::uint32_t signal_every = 0);
  // Flushes and discards what is still posted: see close().
  ~Qp();
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  std::uint32_t qpn() const noexcept { return control_->qpn(); }
  driver::Transport transport() const noexcept { return transport_; }
  driver::Qp& control() noexcept { return *control_; }
  SendQueue& sq() noexcept { return sq_; }
  const SendQueue& sq() const noexcept { return sq_; }
  RecvQueue& rq() noexcept { return rq_; }
  const RecvQueue& rq() const noexcept { return rq_; }

  SendBurst send_burst() noexcept { return sq_.burst(); }
  // See RecvQueue; the device knows of the buffers after publish_receives().
  bool post_receive(const Sge& buffer, std::uint64_t wr_id = 0) noexcept { return rq_.post(buffer, wr_id); }
  bool post_receive(std::span<const Sge> buffers, std::uint64_t wr_id = 0) noexcept {
    return rq_.post(buffers, wr_id);
  }
  void publish_receives() noexcept { rq_.publish(); }

  // Reset → init → rtr → rts in one go. Receives may be posted before.
  void connect(const driver::InitConfig& init, const driver::RtrConfig& rtr, const driver::RtsConfig& rts);
  // UD: no peer.
  void activate(const driver::InitConfig& init);

  // Ends the QP: to the error state, which flushes everything posted; waits, at most timeout_ns,
  // until the flush is through; takes its CQEs out of the completion queues, leaving those of
  // other QPs. Returns false when the device did not finish in time; the slots that were still
  // charged are given back all the same. `progress` is run while waiting.
  bool close(driver::Progress progress = {}, std::uint64_t timeout_ns = 1'000'000'000) noexcept;

 private:
  std::unique_ptr<driver::Qp> control_;
  CompletionQueue& send_cq_;
  CompletionQueue& recv_cq_;
  driver::Transport transport_;
  SendQueue sq_;
  RecvQueue rq_;
  bool closed_ = false;
};

}  // namespace pollen::queue
