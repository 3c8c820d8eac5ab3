#include "pollen/net/tcp_connect.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <cstring>

#include "pollen/base/error.hpp"

namespace pollen::net {

namespace {

constexpr std::chrono::milliseconds first_pause{20};
constexpr std::chrono::milliseconds longest_pause{500};

// Trying a port of this host's own until somebody listens can hit the very port that the kernel
// gave the attempt itself; TCP then connects it to itself.
bool is_connected_to_itself(int fd) {
  SocketAddress here;
  SocketAddress there;
  here.bytes = there.bytes = sizeof here.storage;
  return ::getsockname(fd, here.get(), &here.bytes) == 0 &&
         ::getpeername(fd, there.get(), &there.bytes) == 0 && here.bytes == there.bytes &&
         std::memcmp(&here.storage, &there.storage, here.bytes) == 0;
}

// Returns 0 or an errno value.
int try_once(const SocketAddress& address, const Deadline& deadline, Fd& connected) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  if (::connect(fd.get(), address.get(), address.bytes) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    const Wake wake = wait_for(fd.get(), POLLOUT, deadline);
    if (wake != Wake::ready) return wake == Wake::stopped ? ECANCELED : ETIMEDOUT;
    int errnum = 0;
    socklen_t bytes = sizeof errnum;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &errnum, &bytes) != 0) return errno;
    if (errnum != 0) return errnum;
  }
  if (is_connected_to_itself(fd.get())) return ECONNREFUSED;
  connected = std::move(fd);
  return 0;
}

// Every address gets its share of the time that is left. Returns 0, or an errno value; a refusal
// counts before other errors, since only that one may pass by waiting.
int try_all(const std::vector<SocketAddress>& addresses, const Deadline& deadline, Fd& connected) {
  int result = 0;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto share = deadline.left() / static_cast<std::int64_t>(addresses.size() - i);
    const int errnum = try_once(addresses[i], deadline.at_most(share), connected);
    if (errnum == 0 || errnum == ECANCELED) return errnum;
    if (result == 0 || errnum == ECONNREFUSED) result = errnum;
  }
  return result;
}

[[noreturn]] void reject(const Address& address, int errnum, std::chrono::nanoseconds waited) {
  ErrorText text{.attempted = fmt::format("connect to {}", to_string(address))};
  if (errnum == ECONNREFUSED) {
    text.why = fmt::format("nothing listens there{}",
                           waited < first_pause ? "" : fmt::format(", tried for {}", in_words(waited)));
    text.remedy = "Start the server first, and use the same port on both sides";
  } else if (errnum == ETIMEDOUT) {
    text.why = fmt::format("no answer for {}", in_words(waited));
    text.remedy = "Check that the host is up and that no firewall stands before the port";
  } else if (errnum == ECANCELED) {
    text.why = "the program is stopping";
  }
  throw Error(errnum, std::move(text));
}

}  // namespace

Socket tcp_connect(const Address& address, const Deadline& deadline, WhenRefused when_refused) {
  const auto started = Deadline::Clock::now();
  const std::vector<SocketAddress> addresses = resolve(address, deadline);
  Fd fd;
  for (auto pause = first_pause;; pause = std::min(pause * 2, longest_pause)) {
    int errnum = try_all(addresses, deadline, fd);
    if (errnum == 0) return Socket(std::move(fd), Role::client);
    if (errnum == ECONNREFUSED && when_refused == WhenRefused::retry) {
      if (wait_for(-1, 0, deadline.at_most(pause)) == Wake::stopped)
        errnum = ECANCELED;
      else if (!deadline.passed())
        continue;
    }
    reject(address, errnum, Deadline::Clock::now() - started);
  }
}

}  // namespace pollen::net
