// How long a wait may take, and what may end it sooner. Every wait of this module takes one.
//
// stop_fd is any descriptor that becomes readable when the program is to stop, an eventfd for
// instance; it is only looked at, never read, and stays the caller's. A wait that it ends throws
// Error(ECANCELED); one that takes too long, Error(ETIMEDOUT).
//
// Thread rules: a value type.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

namespace pollen::net {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A time limit from now on. Beyond a year is a year.
  static Deadline after(std::chrono::nanoseconds limit, int stop_fd = -1) {
    return {Clock::now() + std::clamp<std::chrono::nanoseconds>(limit, std::chrono::nanoseconds{0}, longest),
            stop_fd};
  }
  // The same, ended by what ends this one, and no later than this one.
  Deadline at_most(std::chrono::nanoseconds limit) const {
    const Deadline shorter = after(limit, stop_fd_);
    return shorter.at_ < at_ ? shorter : *this;
  }

  std::chrono::nanoseconds left() const {
    return std::max<std::chrono::nanoseconds>(at_ - Clock::now(), std::chrono::nanoseconds{0});
  }
  bool passed() const { return left().count() == 0; }
  int stop_fd() const { return stop_fd_; }

 private:
  static constexpr std::chrono::nanoseconds longest = std::chrono::hours{24 * 365};

  Deadline(Clock::time_point at, int stop_fd) : at_(at), stop_fd_(stop_fd) {}

  Clock::time_point at_;
  int stop_fd_;
};

enum class Wake { ready, timed_out, stopped };

// Waits until fd has one of these poll(2) events, an error or a hang-up. fd -1: waits for the end.
Wake wait_for(int fd, short events, const Deadline& deadline);

// "300 ms", "5 s"
std::string in_words(std::chrono::nanoseconds time);

}  // namespace pollen::net
