#include "pollen/net/deadline.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <cerrno>

#include "pollen/base/error.hpp"

namespace pollen::net {

Wake wait_for(int fd, short events, const Deadline& deadline) {
  std::array<pollfd, 2> waiting{pollfd{.fd = fd, .events = events, .revents = 0},
                                pollfd{.fd = deadline.stop_fd(), .events = POLLIN, .revents = 0}};
  for (;;) {
    const auto left_ms = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    const int most_ms = static_cast<int>(std::min<std::int64_t>(left_ms.count(), 1'000'000));
    const int ready = ::poll(waiting.data(), waiting.size(), most_ms);
    if (ready < 0 && errno != EINTR) throw Error(errno, {.attempted = "wait for a socket"});
    if (ready > 0) return waiting[1].revents != 0 ? Wake::stopped : Wake::ready;
    if (ready == 0 && deadline.passed()) return Wake::timed_out;
  }
}

std::string in_words(std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  if (seconds < 0.95) return fmt::format("{:.0f} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

}  // namespace pollen::net
