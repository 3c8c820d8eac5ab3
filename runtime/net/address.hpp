// Where a peer or a listener is, as people write it: "host", "host:18600", "10.0.0.1", "::1",
// "[fe80::1%eth0]:18600". A name stays a name until it is resolved.
//
// Errors: pollen::Error, EINVAL for text that is no address, EADDRNOTAVAIL for a name without one.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pollen/net/deadline.hpp"

namespace pollen::net {

inline constexpr std::uint16_t default_port = 18515;  // perftest's

struct Address {
  std::string host = {};  // name or number, without brackets; empty: every address of this host
  std::uint16_t port = default_port;

  bool operator==(const Address&) const = default;
};

// The host may not be empty here, nor the port 0. `port` is the one of a text that names none.
Address parse_address(std::string_view text, std::uint16_t port = default_port);
std::string to_string(const Address& address);  // parse_address reads it back

// A number that the kernel takes.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  int family() const noexcept { return storage.ss_family; }
  std::uint16_t port() const noexcept;
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
};
std::string to_string(const SocketAddress& address);  // an IPv4-mapped one is written as IPv4

// All TCP addresses of a host, in the order to try them. A number is never looked up. An empty
// host gives the addresses to listen on.
std::vector<SocketAddress> resolve(const Address& address, const Deadline& deadline);

}  // namespace pollen::net
