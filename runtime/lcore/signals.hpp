// SIGINT and SIGTERM, for the main thread: the first one asks for a clean stop, the second one ends the
// process at once, wherever its threads are. Workers have all signals blocked (thread.hpp).
//
// One guard at a time in a process; it puts back what it found. Signals that follow the first within
// 100 ms count as the same: timeout(1) and some shells send theirs twice.
//
// Thread rules: create, wait and destroy in the same thread. Errors: pollen::Error.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>

namespace pollen::lcore {

class SignalGuard {
 public:
  // on_stop runs inside wait(), as an ordinary function, once.
  explicit SignalGuard(std::function<void()> on_stop);
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  // Waits for the first signal, at most timeout_ns; 0 only looks. Calls on_stop and returns the signal
  // number. Returns 0 if none came, and from then on whenever the one that came was reported before.
  int wait(std::int64_t timeout_ns);

  // Readable from the first signal on until wait() has reported it: ends a wait elsewhere. To be
  // polled, never read.
  int wake_fd() const noexcept { return wake_fd_; }

 private:
  std::function<void()> on_stop_;
  int wake_fd_;
  struct sigaction before_int_ {};
  struct sigaction before_term_ {};
  sigset_t before_mask_{};
};

}  // namespace pollen::lcore
