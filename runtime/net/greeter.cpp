#include "pollen/net/greeter.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace pollen::net {

namespace {

constexpr std::size_t max_waiting = 64;

Error silent(const Socket& socket, std::string why) {
  return Error(ETIMEDOUT, {.attempted = "shake hands",
                           .on = fmt::format("the connection to {}", socket.peer()),
                           .why = std::move(why)});
}

bool has_spoken(const Socket& socket) {
  return wait_for(socket.fd(), POLLIN, Deadline::after(std::chrono::nanoseconds{0})) == Wake::ready;
}

}  // namespace

Greeter::Greeter(TcpListener& listener, Hello mine, std::chrono::nanoseconds hello_limit, OnReject on_reject)
    : listener_(listener),
      mine_(std::move(mine)),
      hello_limit_(hello_limit),
      on_reject_(on_reject ? std::move(on_reject) : [](const Error&) {}) {}

Greeted Greeter::next(const Deadline& deadline) {
  for (;;) {
    const Wake wake = wait(deadline);
    if (wake != Wake::ready)
      throw Error(wake == Wake::stopped ? ECANCELED : ETIMEDOUT,
                  {.attempted = fmt::format("wait for a peer on port {}", listener_.port()),
                   .why = wake == Wake::stopped ? "the program is stopping" : "nobody came in time"});
    admit(deadline);
    if (auto greeted = hear(deadline)) return std::move(*greeted);
  }
}

// Ready: somebody connected or spoke, or the time of the first one waiting is up.
Wake Greeter::wait(const Deadline& deadline) const {
  std::vector<pollfd> fds{{.fd = deadline.stop_fd(), .events = POLLIN, .revents = 0},
                          {.fd = listener_.fd(), .events = POLLIN, .revents = 0}};
  for (const Waiting& one : waiting_) fds.push_back({.fd = one.socket.fd(), .events = POLLIN, .revents = 0});
  for (;;) {
    const auto left =
        waiting_.empty() ? deadline.left() : std::min(deadline.left(), waiting_.front().limit.left());
    const auto left_ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    const int ready =
        ::poll(fds.data(), fds.size(), static_cast<int>(std::min<std::int64_t>(left_ms, 1'000'000)));
    if (ready < 0 && errno != EINTR) throw Error(errno, {.attempted = "wait for a peer"});
    if (ready > 0) return fds.front().revents != 0 ? Wake::stopped : Wake::ready;
    if (ready == 0 && !waiting_.empty() && waiting_.front().limit.passed()) return Wake::ready;
    if (ready == 0 && deadline.passed()) return Wake::timed_out;
  }
}

// No more at a time than may wait: a flood of strangers must not keep others from being heard.
void Greeter::admit(const Deadline& deadline) {
  for (std::size_t i = 0; i < max_waiting; ++i) {
    auto socket = listener_.try_accept();
    if (!socket) return;
    if (waiting_.size() == max_waiting) {
      const Waiting oldest = std::move(waiting_.front());
      waiting_.erase(waiting_.begin());
      on_reject_(silent(oldest.socket, fmt::format("it has said nothing and {} others wait", max_waiting)));
    }
    waiting_.push_back(
        {.socket = std::move(*socket), .limit = Deadline::after(hello_limit_, deadline.stop_fd())});
  }
}

std::optional<Greeted> Greeter::hear(const Deadline& deadline) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const bool spoke = has_spoken(at->socket);
    if (!spoke && !at->limit.passed()) {
      ++at;
      continue;
    }
    Waiting one = std::move(*at);
    at = waiting_.erase(at);
    if (!spoke) {
      on_reject_(silent(one.socket, fmt::format("the peer said nothing for {}", in_words(hello_limit_))));
      continue;
    }
    try {
      Agreement agreement = exchange_hello(one.socket, mine_, deadline.at_most(one.limit.left()));
      return Greeted{.socket = std::move(one.socket), .agreement = std::move(agreement)};
    } catch (const Error& error) {
      if (error.code().value() == ECANCELED) throw;
      on_reject_(error);
    }
  }
  return std::nullopt;
}

}  // namespace pollen::net
