// How many messages completed in each window of time, for the rate's minimum and maximum: of each lcore,
// and since windows of all lcores begin at the same moment, of their sum.
//
// Memory is fixed: when all windows are used, pairs of them are merged and windows are twice as long
// from then on. Units: nanoseconds. Thread rules: owner only while it counts. Errors: none.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace pollen::bw {

// Equal windows, from the beginning of the measurement on.
struct WindowSeries {
  std::uint64_t width_ns = 1'000'000;
  std::vector<std::uint64_t> messages;

  // Windows of `width_ns`, a multiple of the present width by a power of two. One at the end that is not
  // full is left out.
  void widen(std::uint64_t to_width_ns) {
    while (width_ns < to_width_ns) {
      for (std::size_t i = 0; i < messages.size() / 2; ++i)
        messages[i] = messages[2 * i] + messages[2 * i + 1];
      messages.resize(messages.size() / 2);
      width_ns *= 2;
    }
  }
  // Few enough that each is long enough to mean something.
  void widen_to_at_most(std::size_t windows) {
    while (messages.size() > windows) widen(2 * width_ns);
  }
};

class WindowLog {
 public:
  static constexpr std::uint64_t first_width_ns = 1'000'000;
  static constexpr std::size_t capacity = 1024;

  void start(std::uint64_t now_ns) noexcept { window_end_ns_ = now_ns + width_ns_; }

  void add(std::uint64_t now_ns, std::uint64_t messages) noexcept {
    if (now_ns >= window_end_ns_) [[unlikely]]
      close_until(now_ns);
    open_ += messages;
  }

  // The last window, which is not full, is not part of it.
  WindowSeries series(std::uint64_t now_ns) {
    if (now_ns >= window_end_ns_) close_until(now_ns);
    return {width_ns_, {windows_.begin(), windows_.begin() + static_cast<std::ptrdiff_t>(count_)}};
  }

 private:
  void close_until(std::uint64_t now_ns) noexcept {
    while (now_ns >= window_end_ns_) {
      if (count_ == capacity) {
        for (std::size_t i = 0; i < capacity / 2; ++i) windows_[i] = windows_[2 * i] + windows_[2 * i + 1];
        count_ = capacity / 2;
        window_end_ns_ += width_ns_;
        width_ns_ *= 2;
        continue;
      }
      windows_[count_++] = open_;
      open_ = 0;
      window_end_ns_ += width_ns_;
    }
  }

  std::uint64_t window_end_ns_ = 0;
  std::uint64_t open_ = 0;
  std::uint64_t width_ns_ = first_width_ns;
  std::size_t count_ = 0;
  std::array<std::uint64_t, capacity> windows_{};
};

}  // namespace pollen::bw
