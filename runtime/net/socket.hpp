// A connected TCP socket, and the waits on it. Afterwards it is the connection's death watch:
// keepalive ends it when the peer's host falls silent, and peer_closed() tells when the peer died.
//
// Underneath it never blocks; each call gives up at its deadline, however little at a time arrives.
// SIGPIPE is never raised. After an error the stream's position is unknown: close it.
//
// Thread rules: one thread at a time. Errors: pollen::Error; ECONNRESET when the peer is gone,
// ETIMEDOUT, ECANCELED.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "pollen/net/deadline.hpp"
#include "pollen/net/fd.hpp"

namespace pollen::net {

// Who listened and who connected. In an exchange the client speaks first, so that a listener says
// nothing to a stranger, and no two sides wait for each other's buffers.
enum class Role : std::uint8_t { client, server };

constexpr const char* name(Role role) noexcept { return role == Role::client ? "client" : "server"; }
constexpr Role other(Role role) noexcept { return role == Role::client ? Role::server : Role::client; }

class Socket {
 public:
  Socket(Fd fd, Role role);  // a connected TCP socket

  void send_all(std::span<const std::byte> bytes, const Deadline& deadline);
  void recv_exact(std::span<std::byte> bytes, const Deadline& deadline);
  // At least one byte.
  std::size_t recv_some(std::span<std::byte> bytes, const Deadline& deadline);
  // What is there already, if anything.
  std::size_t recv_now(std::span<std::byte> bytes) noexcept;

  // The peer's end is closed, or the connection broke. True even while what it sent before is
  // still unread. Costs one system call.
  bool peer_closed() const noexcept;

  // Says that nothing more will come and waits for the peer to do the same, discarding what it
  // sends: closing with unread input would destroy what is still on its way to the peer.
  void finish(const Deadline& deadline) noexcept;

  Role role() const noexcept { return role_; }
  const std::string& peer() const noexcept { return peer_; }  // "10.0.0.1:40112"
  int fd() const noexcept { return fd_.get(); }               // for epoll: EPOLLRDHUP is the death watch

 private:
  [[noreturn]] void broke(const char* attempted, int errnum) const;
  void wait(short events, const Deadline& deadline, const char* attempted) const;

  Fd fd_;
  Role role_;
  std::string peer_;
};

}  // namespace pollen::net
