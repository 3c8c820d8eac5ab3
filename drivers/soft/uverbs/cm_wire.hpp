// What two connection managers tell each other: one message each, over a local stream that keeps
// messages apart. A listener's name is its port number; addresses are only carried along, as all of
// them are this host's.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>

namespace pollen::soft::uverbs {

enum class CmKind : std::uint32_t { request = 1, reply, ready, reject, disconnect, disconnected };

struct CmMessage {
  CmKind kind;
  std::uint32_t qpn;
  std::uint32_t qkey;
  std::uint32_t psn;
  std::array<std::uint8_t, 16> gid;
  sockaddr_in6 from;  // IPv4 has its own layout in it
  sockaddr_in6 to;
  std::uint8_t datagram;  // UD: nothing is connected
  std::uint8_t responder_resources;
  std::uint8_t initiator_depth;
  std::uint8_t retry_count;
  std::uint8_t rnr_retry_count;
  std::uint8_t srq;
  std::uint8_t reason;
  std::uint8_t data_bytes;
  std::array<std::uint8_t, 256> data;
};

}  // namespace pollen::soft::uverbs
