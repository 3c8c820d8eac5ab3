// The first message: who each side is, and what both have to agree on. Each parameter carries the
// rule by which it is settled, so that both sides come to the same result from the two hellos, or to
// the same sentence why not.
//
// Values are text; numbers are decimal. Their limits are below; the whole has 64 KiB at most.
// Errors: as in message.hpp; ECONNABORTED where the two can't agree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pollen/net/deadline.hpp"
#include "pollen/net/message.hpp"
#include "pollen/net/socket.hpp"

namespace pollen::net {

inline constexpr std::size_t max_name_bytes = 64;
inline constexpr std::size_t max_value_bytes = 1024;
inline constexpr std::size_t max_parameters = 256;

enum class Rule : std::uint8_t {
  inform,   // each side has its own; the result is the peer's
  equal,    // must be the same text
  smaller,  // a number: the smaller one holds for both
  larger,   // a number: the larger one holds for both
  common,   // a list a,b,c: the client's first that the server has too
};

struct Parameter {
  std::string name;
  Rule rule = Rule::equal;
  std::string value;

  bool operator==(const Parameter&) const = default;
};

struct Hello {
  std::string program;  // "rdma_bw": must be the same on both sides
  std::string release;  // of Pollen; may differ
  std::string device;   // driver and device, for reports
  std::vector<Parameter> parameters;

  bool operator==(const Hello&) const = default;
};

std::vector<std::byte> encode_hello(const Hello& hello);
Hello decode_hello(std::span<const std::byte> body);

// What the two agreed on.
struct Agreement {
  Hello peer;
  std::vector<Parameter> settled;  // a parameter that one side only informs about may be the peer's alone

  const std::string& text(std::string_view name) const;  // Error(EINVAL) if there is none
  std::uint64_t number(std::string_view name) const;
};

// A pure function; both sides call it with the same arguments but for who they are.
// Error(ECONNABORTED) names every parameter that stands in the way, with both values.
Agreement settle(const Hello& client, const Hello& server, Role role);

// Exchanges hellos and settles them. The server answers a client that it can't agree with by the
// reason, in place of its hello.
Agreement exchange_hello(Socket& socket, const Hello& mine, const Deadline& deadline);

}  // namespace pollen::net
