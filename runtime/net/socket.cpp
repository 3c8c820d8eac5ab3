#include "pollen/net/socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <cerrno>

#include "pollen/base/error.hpp"
#include "pollen/net/address.hpp"

namespace pollen::net {

namespace {

// A host that falls silent is noticed after ten seconds, with or without data on the way.
constexpr int keepalive_idle_s = 4;
constexpr int keepalive_interval_s = 2;
constexpr int keepalive_probes = 3;
constexpr unsigned user_timeout_ms = 10'000;

template <typename T>
void set_option(int fd, int level, int option, const T& value) {
  if (::setsockopt(fd, level, option, &value, sizeof value) != 0)
    throw Error(errno, {.attempted = fmt::format("set TCP option {}", option)});
}

bool is_gone(int errnum) {
  return errnum == ECONNRESET || errnum == EPIPE || errnum == ETIMEDOUT || errnum == EHOSTUNREACH ||
         errnum == ENETUNREACH || errnum == ECONNABORTED || errnum == ENETDOWN;
}

}  // namespace

Socket::Socket(Fd fd, Role role) : fd_(std::move(fd)), role_(role) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    throw Error(errno, {.attempted = "make a socket non-blocking"});
  set_option(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, keepalive_idle_s);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, keepalive_interval_s);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, keepalive_probes);
  set_option(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, user_timeout_ms);

  SocketAddress peer;
  peer.bytes = sizeof peer.storage;
  if (::getpeername(fd_.get(), peer.get(), &peer.bytes) != 0) broke("use a new connection", errno);
  peer_ = to_string(peer);
}

void Socket::broke(const char* attempted, int errnum) const {
  const std::string on = peer_.empty() ? "" : fmt::format("the connection to {}", peer_);
  if (!is_gone(errnum)) throw Error(errnum, {.attempted = attempted, .on = on});
  if (errnum == ETIMEDOUT)
    throw Error(ECONNRESET, {.attempted = attempted,
                             .on = on,
                             .why = "the peer's host has fallen silent",
                             .remedy = "Check that it is up and the network between"});
  throw Error(ECONNRESET, {.attempted = attempted,
                           .on = on,
                           .why = "the peer closed it",
                           .remedy = "Its own output says why, unless it was killed"});
}

void Socket::wait(short events, const Deadline& deadline, const char* attempted) const {
  // Also when there is something to read: a peer that never pauses must not outrun the deadline.
  const Wake wake = deadline.passed() ? Wake::timed_out : wait_for(fd_.get(), events, deadline);
  if (wake == Wake::ready) return;
  throw Error(wake == Wake::stopped ? ECANCELED : ETIMEDOUT,
              {.attempted = attempted,
               .on = fmt::format("the connection to {}", peer_),
               .why = wake == Wake::stopped ? "the program is stopping" : "the peer took too long"});
}

void Socket::send_all(std::span<const std::byte> bytes, const Deadline& deadline) {
  constexpr const char* attempted = "send";
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      wait(POLLOUT, deadline, attempted);
    } else if (errno != EINTR) {
      broke(attempted, errno);
    }
  }
}

std::size_t Socket::recv_some(std::span<std::byte> bytes, const Deadline& deadline) {
  constexpr const char* attempted = "receive";
  for (;;) {
    wait(POLLIN, deadline, attempted);
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) broke(attempted, ECONNRESET);
    if (errno != EAGAIN && errno != EINTR) broke(attempted, errno);
  }
}

void Socket::recv_exact(std::span<std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) bytes = bytes.subspan(recv_some(bytes, deadline));
}

std::size_t Socket::recv_now(std::span<std::byte> bytes) noexcept {
  const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

bool Socket::peer_closed() const noexcept {
  pollfd looking{.fd = fd_.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&looking, 1, 0) == 1 && looking.revents != 0;
}

void Socket::finish(const Deadline& deadline) noexcept {
  try {
    ::shutdown(fd_.get(), SHUT_WR);
    for (std::array<std::byte, 4096> ignored;;) recv_some(ignored, deadline);
  } catch (const std::exception&) {
    // The peer closed too, or took too long.
  }
}

}  // namespace pollen::net
