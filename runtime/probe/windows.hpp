// A rate over fixed windows of time: its minimum, mean and maximum show what an average hides.
// A window in which nothing happened counts as one: a stall is a minimum of 0.
//
// Units: nanoseconds in, bytes and messages per second out. Memory is fixed. Times that run
// backwards count for the current window. Thread rules: owner only. Errors: none, noexcept.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pollen::probe {

// Over the closed windows; all 0 when there is none.
struct RateSeries {
  std::uint64_t windows = 0;
  double min = 0;
  double mean = 0;
  double max = 0;
  double last = 0;  // the window that was closed last, for a progress line
};

class RateWindows {
 public:
  explicit RateWindows(std::uint64_t window_ns) noexcept
      : window_ns_(std::max<std::uint64_t>(window_ns, 1)) {}

  // Begins the first window; add() does it where start() was not called.
  void start(std::uint64_t now_ns) noexcept {
    started_ = true;
    begin_ns_ = now_ns;
  }

  void add(std::uint64_t now_ns, std::uint64_t bytes, std::uint64_t messages) noexcept {
    advance(now_ns);
    open_bytes_ += bytes;
    open_messages_ += messages;
  }

  // Closes the windows that end at or before now. A last, partial window is never counted.
  void advance(std::uint64_t now_ns) noexcept {
    if (!started_) start(now_ns);
    if (now_ns < begin_ns_ || now_ns - begin_ns_ < window_ns_) return;
    const std::uint64_t ended = (now_ns - begin_ns_) / window_ns_;
    bytes_.close(open_bytes_, ended);
    messages_.close(open_messages_, ended);
    windows_ += ended;
    begin_ns_ += ended * window_ns_;
    open_bytes_ = 0;
    open_messages_ = 0;
  }

  std::uint64_t window_ns() const noexcept { return window_ns_; }
  RateSeries bytes_per_second() const noexcept { return series(bytes_); }
  RateSeries messages_per_second() const noexcept { return series(messages_); }

 private:
  struct Amounts {
    std::uint64_t min = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t max = 0;
    std::uint64_t sum = 0;
    std::uint64_t last = 0;

    // The open window, followed by ended - 1 empty ones.
    void close(std::uint64_t amount, std::uint64_t ended) noexcept {
      sum += amount;
      max = std::max(max, amount);
      last = ended > 1 ? 0 : amount;
      min = std::min({min, amount, last});
    }
  };

  RateSeries series(const Amounts& amounts) const noexcept {
    if (windows_ == 0) return {};
    const double per_second = 1e9 / static_cast<double>(window_ns_);
    return {windows_, static_cast<double>(amounts.min) * per_second,
            static_cast<double>(amounts.sum) * per_second / static_cast<double>(windows_),
            static_cast<double>(amounts.max) * per_second, static_cast<double>(amounts.last) * per_second};
  }

  std::uint64_t window_ns_;
  bool started_ = false;
  std::uint64_t begin_ns_ = 0;
  std::uint64_t open_bytes_ = 0;
  std::uint64_t open_messages_ = 0;
  std::uint64_t windows_ = 0;
  Amounts bytes_;
  Amounts messages_;
};

}  // namespace pollen::probe
