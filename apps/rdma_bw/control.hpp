// The end of a round. While workers run, the main thread looks here at every tick: at their Live flags, at
// the peer's socket, at signals.
//
//   a side's workers have sent all    it tells the peer: "finished"
//   both sides have finished          the workers stop
//   Ctrl-C                            it tells the peer: "stop", and both sides send no more
//   the peer's socket closes          the peer is gone: the workers stop at once
//
// Two sides in one process have two of these, of which the client's looks at signals.
//
// Thread rules: tick() and part() by one thread; release() by any worker. Errors: tick() throws nothing,
// what happened is in failure(); part() throws pollen::Error.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "flow.hpp"
#include "pollen/base/error.hpp"
#include "pollen/net/socket.hpp"

namespace pollen::bw {

class Control {
 public:
  // request_stop ends the workers' loops.
  Control(net::Socket& socket, Shared& shared, std::span<const std::unique_ptr<Live>> live,
          std::function<void()> request_stop)
      : socket_(socket), shared_(shared), live_(live), request_stop_(std::move(request_stop)) {}

  // The workers have met: the socket is this object's from here on.
  void release() noexcept { released_.store(true, std::memory_order_release); }
  bool released() const noexcept { return released_.load(std::memory_order_acquire); }

  void tick(bool signalled) noexcept;

  // After the workers: the last word of each side, behind which the socket is free for others. A "stop"
  // that crossed the peer's "finished" ends here.
  void part();

  bool interrupted() const noexcept { return interrupted_; }
  const std::optional<Error>& failure() const noexcept { return failure_; }

 private:
  using Clock = std::chrono::steady_clock;

  void look(bool signalled);
  void tell(std::string_view what);
  void hear();
  std::string next_word();
  bool all_said() const noexcept { return told_finished_ && peer_finished_; }
  void end_sending();
  bool all_finished() const noexcept;
  void give_up(Error error) noexcept;

  net::Socket& socket_;
  Shared& shared_;
  std::span<const std::unique_ptr<Live>> live_;
  std::function<void()> request_stop_;
  std::atomic<bool> released_{false};
  bool told_finished_ = false;
  bool told_stop_ = false;
  bool peer_finished_ = false;
  bool interrupted_ = false;
  bool done_ = false;
  std::optional<Clock::time_point> stop_by_;
  std::optional<Error> failure_;
};

}  // namespace pollen::bw
