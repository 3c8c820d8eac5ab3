// Listens on a TCP port.
//
// Thread rules: one thread at a time; with reuse_port each worker has a listener of its own on the
// same port, and the kernel spreads connections over them.
// Errors: pollen::Error, EADDRINUSE (names the holder, where it can be found), EACCES, EADDRNOTAVAIL.
#pragma once

#include <cstdint>
#include <optional>

#include "pollen/net/address.hpp"
#include "pollen/net/deadline.hpp"
#include "pollen/net/fd.hpp"
#include "pollen/net/socket.hpp"

namespace pollen::net {

struct ListenOptions {
  bool reuse_port = false;
  int backlog = 512;
};

class TcpListener {
 public:
  // Empty host: IPv6 and IPv4 on every address. Port 0: any free one.
  explicit TcpListener(const Address& address, ListenOptions options = {});
  // Waits for a connection; Error(ETIMEDOUT) if none came.
  Socket accept(const Deadline& deadline);
  std::optional<Socket> try_accept();  // without waiting

  std::uint16_t port() const noexcept { return port_; }
  int fd() const noexcept { return fd_.get(); }  // readable when accept() would not wait

 private:
  Fd fd_;
  std::uint16_t port_ = 0;
};

}  // namespace pollen::net
