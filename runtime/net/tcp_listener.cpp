#include "pollen/net/tcp_listener.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "pollen/base/error.hpp"
#include "pollen/net/port_holder.hpp"

namespace pollen::net {

namespace {

constexpr std::chrono::seconds look_up_limit{10};

// IPv6 first: where it is there, one socket takes both families.
std::vector<SocketAddress> candidates(const Address& address) {
  if (!address.host.empty()) return resolve(address, Deadline::after(look_up_limit));
  std::vector<SocketAddress> any(2);
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(address.port);
  std::memcpy(&any[0].storage, &in6, any[0].bytes = sizeof in6);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(address.port);
  std::memcpy(&any[1].storage, &in, any[1].bytes = sizeof in);
  return any;
}

// An empty Fd with errno set where it can't be.
Fd listen_on(const SocketAddress& address, bool any, const ListenOptions& options) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  const int yes = 1;
  const int ipv6_only = any ? 0 : 1;
  const bool ready =
      ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
      (!options.reuse_port || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) == 0) &&
      (address.family() != AF_INET6 ||
       ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &ipv6_only, sizeof ipv6_only) == 0) &&
      ::bind(fd.get(), address.get(), address.bytes) == 0 && ::listen(fd.get(), options.backlog) == 0;
  if (ready) return fd;
  const int errnum = errno;
  fd.reset();
  errno = errnum;
  return fd;
}

[[noreturn]] void reject(const Address& address, int errnum) {
  ErrorText text{.attempted = fmt::format("listen on {}", to_string(address))};
  if (errnum == EADDRINUSE) {
    const std::string holder = port_holder(address.port);
    text.why = fmt::format("port {} is in use{}{}", address.port, holder.empty() ? "" : " by ", holder);
    text.remedy = holder.empty() ? "Choose another port on both sides"
                                 : "Stop it, or choose another port on both sides";
  } else if (errnum == EADDRNOTAVAIL) {
    text.why = "this host has no such address";
    text.remedy = "`ip address` lists those it has";
  } else if (errnum == EACCES) {
    text.why = fmt::format("port {} is for privileged programs", address.port);
    text.remedy = "Choose a port above 1023";
  }
  throw Error(errnum, std::move(text));
}

std::uint16_t bound_port(int fd) {
  SocketAddress bound;
  bound.bytes = sizeof bound.storage;
  if (::getsockname(fd, bound.get(), &bound.bytes) != 0) throw Error(errno, {.attempted = "read a port"});
  return bound.port();
}

}  // namespace

TcpListener::TcpListener(const Address& address, ListenOptions options) {
  int errnum = EADDRNOTAVAIL;
  for (const SocketAddress& candidate : candidates(address)) {
    fd_ = listen_on(candidate, address.host.empty(), options);
    if (fd_) break;
    errnum = errno;
    if (errnum != EAFNOSUPPORT && errnum != EADDRNOTAVAIL) break;
  }
  if (!fd_) reject(address, errnum);
  port_ = bound_port(fd_.get());
}

std::optional<Socket> TcpListener::try_accept() {
  for (;;) {
    Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      try {
        return Socket(std::move(fd), Role::server);
      } catch (const Error&) {
        continue;  // it went away while it waited: a port scan
      }
    }
    if (errno == EAGAIN) return std::nullopt;
    // Its peer went away, or its network did.
    const bool passing = errno == EINTR || errno == ECONNABORTED || errno == EPROTO || errno == ENETDOWN ||
                         errno == EHOSTUNREACH || errno == ENETUNREACH;
    if (!passing) throw Error(errno, {.attempted = fmt::format("accept a connection on port {}", port_)});
  }
}

Socket TcpListener::accept(const Deadline& deadline) {
  for (;;) {
    const Wake wake = wait_for(fd_.get(), POLLIN, deadline);
    if (wake != Wake::ready)
      throw Error(wake == Wake::stopped ? ECANCELED : ETIMEDOUT,
                  {.attempted = fmt::format("accept a connection on port {}", port_),
                   .why = wake == Wake::stopped ? "the program is stopping" : "nobody connected in time"});
    if (auto socket = try_accept()) return std::move(*socket);
    // Another thread took it, or it went away.
  }
}

}  // namespace pollen::net
