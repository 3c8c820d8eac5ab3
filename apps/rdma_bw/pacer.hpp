// Keeps a sender to a rate: says how many messages may go out by now.
//
// What could not be sent in time is not made up for beyond one burst. Units: nanoseconds, messages.
// Thread rules: owner only. Errors: none.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pollen::bw {

class Pacer {
 public:
  // per_second 0: no limit. burst: how many may go out at once.
  Pacer(double per_second, std::uint32_t burst) noexcept
      : per_ns_(per_second / 1e9), burst_(std::max(1U, burst)), tokens_(burst_) {}

  bool active() const noexcept { return per_ns_ > 0; }
  void start(std::uint64_t now_ns) noexcept { last_ns_ = now_ns; }

  std::uint64_t allowed(std::uint64_t now_ns) noexcept {
    if (now_ns > last_ns_) {
      tokens_ = std::min<double>(burst_, tokens_ + static_cast<double>(now_ns - last_ns_) * per_ns_);
      last_ns_ = now_ns;
    }
    return tokens_ < 1 ? 0 : static_cast<std::uint64_t>(tokens_);
  }
  void sent(std::uint64_t messages) noexcept { tokens_ -= static_cast<double>(messages); }

 private:
  double per_ns_;
  double burst_;
  double tokens_;
  std::uint64_t last_ns_ = 0;
};

}  // namespace pollen::bw
