#include "pollen/net/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "pollen/base/error.hpp"

namespace pollen::net {

namespace {

constexpr std::size_t longest_host = 255;

[[noreturn]] void reject(std::string_view text, std::string why) {
  constexpr std::size_t shown = 80;
  throw Error(EINVAL, {.attempted = fmt::format("read {:?} as an address", text.substr(0, shown)),
                       .why = std::move(why),
                       .remedy = "Write host, host:port, or [IPv6 address]:port"});
}

std::uint16_t parse_port(std::string_view text, std::string_view digits) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error == std::errc::invalid_argument || end != digits.data() + digits.size())
    reject(text, fmt::format("the port {:?} is not a number", digits.substr(0, 20)));
  if (error != std::errc{} || port < 1 || port > 65535)
    reject(text, fmt::format("the port {} is not between 1 and 65535", digits.substr(0, 20)));
  return static_cast<std::uint16_t>(port);
}

bool fits_a_host(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view(".-_:%").find(c) != std::string_view::npos;
}

}  // namespace

Address parse_address(std::string_view text, std::uint16_t port) {
  Address address{.host = {}, .port = port};
  std::string_view host = text;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) reject(text, "the '[' is never closed");
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && !rest.starts_with(':')) reject(text, "after ']' there may only be :port");
    if (!rest.empty()) address.port = parse_port(text, rest.substr(1));
    if (host.find(':') == std::string_view::npos) reject(text, "brackets are for IPv6 addresses");
  } else if (std::ranges::count(text, ':') == 1) {
    const std::size_t colon = text.find(':');
    host = text.substr(0, colon);
    address.port = parse_port(text, text.substr(colon + 1));
  }
  if (host.empty()) reject(text, "the host is missing");
  if (host.size() > longest_host) reject(text, fmt::format("a host has at most {} characters", longest_host));
  if (!std::ranges::all_of(host, fits_a_host)) reject(text, "the host has characters that no name has");
  address.host = host;
  return address;
}

std::string to_string(const Address& address) {
  if (address.host.find(':') != std::string::npos) return fmt::format("[{}]:{}", address.host, address.port);
  return fmt::format("{}:{}", address.host.empty() ? "*" : address.host, address.port);
}

std::uint16_t SocketAddress::port() const noexcept {
  // The port is at the same place in both families.
  sockaddr_in in{};
  std::memcpy(&in, &storage, sizeof in);
  return family() == AF_INET || family() == AF_INET6 ? ntohs(in.sin_port) : std::uint16_t{0};
}

std::string to_string(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.family() == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address.storage, sizeof in);
    ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), address.port());
  }
  if (address.family() != AF_INET6) return "an address that is not IP";
  sockaddr_in6 in{};
  std::memcpy(&in, &address.storage, sizeof in);
  if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
    ::inet_ntop(AF_INET, in.sin6_addr.s6_addr + 12, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), address.port());
  }
  ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size());
  const std::string zone = in.sin6_scope_id == 0 ? "" : fmt::format("%{}", in.sin6_scope_id);
  return fmt::format("[{}{}]:{}", text.data(), zone, address.port());
}

}  // namespace pollen::net
