#include "pollen/queue/qp.hpp"

#include <chrono>

namespace pollen::queue {

namespace {

constexpr std::uint32_t default_signal_every = 32;

}  // namespace

Qp::Qp(std::unique_ptr<driver::Qp> control, CompletionQueue& send_cq, CompletionQueue& recv_cq,
       driver::Transport transport, std::uint32_t signal_every)
    : control_(std::move(control)),
      send_cq_(send_cq),
      recv_cq_(recv_cq),
      transport_(transport),
      sq_(control_->send_ring(), send_cq, signal_every == 0 ? default_signal_every : signal_every),
      rq_(control_->recv_ring(), recv_cq) {
  if (&send_cq_ == &recv_cq_) {
    send_cq_.attach(qpn(), &sq_, &rq_);
  } else {
    send_cq_.attach(qpn(), &sq_, nullptr);
    recv_cq_.attach(qpn(), nullptr, &rq_);
  }
}

Qp::~Qp() { close(); }

void Qp::connect(const driver::InitConfig& init, const driver::RtrConfig& rtr, const driver::RtsConfig& rts) {
  control_->to_init(init);
  control_->to_rtr(rtr);
  control_->to_rts(rts);
}

void Qp::activate(const driver::InitConfig& init) {
  control_->to_init(init);
  control_->to_rtr({});
  control_->to_rts({});
}

bool Qp::close(driver::Progress progress, std::uint64_t timeout_ns) noexcept {
  if (closed_) return true;
  closed_ = true;
  bool drained = true;
  try {
    control_->to_error();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
    const auto drain = [&] {
      send_cq_.purge(qpn());
      if (&send_cq_ != &recv_cq_) recv_cq_.purge(qpn());
      return sq_.outstanding() == 0 && rq_.outstanding() == 0;
    };
    while (!drain()) {
      progress();
      if (std::chrono::steady_clock::now() > deadline) {
        drained = false;
        break;
      }
    }
  } catch (...) {
    drained = false;
  }
  send_cq_.detach(qpn());
  if (&send_cq_ != &recv_cq_) recv_cq_.detach(qpn());
  return drained;
}

}  // namespace pollen::queue
