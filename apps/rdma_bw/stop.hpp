// Ctrl-C, from the first line to the last: wakes whatever wait is under way, and tells a round to end.
//
// Thread rules: the main thread makes it and calls everything but fd() and stopped(), which are for any.
// Errors: pollen::Error.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <utility>

#include "pollen/base/error.hpp"
#include "pollen/lcore/signals.hpp"
#include "pollen/net/fd.hpp"

namespace pollen::bw {

class Stop {
 public:
  Stop() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), guard_([this] { on_signal(); }) {
    if (!fd_) throw Error(errno, {.attempted = "create an eventfd"});
  }

  // Looks for a signal; returns its number once there was one.
  int look() {
    if (const int signal = guard_.wait(0); signal != 0) signal_ = signal;
    return signal_;
  }
  bool stopped() const noexcept { return signal_ != 0 || fired_; }
  // Readable once there was a signal: the stop_fd of a Deadline.
  int fd() const noexcept { return fd_.get(); }

  // Runs a step that waits on fd() in a thread of its own, while this one looks for signals.
  template <class Step>
  auto run(Step step) {
    auto result = std::async(std::launch::async, std::move(step));
    while (result.wait_for(std::chrono::milliseconds(2)) != std::future_status::ready) look();
    return result.get();
  }

 private:
  void on_signal() {
    fired_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd_.get(), &one, sizeof one);
  }

  net::Fd fd_;
  std::atomic<bool> fired_{false};
  std::atomic<int> signal_{0};
  lcore::SignalGuard guard_;
};

}  // namespace pollen::bw
