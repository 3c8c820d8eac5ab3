// What each side tells of its queue pairs, so that the other can connect to them.
//
// On the wire a record of 64 bytes, big-endian: qpn 0, psn 4, gid 8…23, address 24, bytes 32,
// rkey 40, qkey 44, mtu_bytes 48, lid 52 (2), gid_type 54 (1), transport 55 (1), reads_in 56 (1),
// reads_out 57 (1), min_rnr_timer 58 (1), zeros 59…63.
//
// Errors: as in message.hpp; EINVAL for one's own endpoint that makes no sense.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/net/deadline.hpp"
#include "pollen/net/socket.hpp"

namespace pollen::net {

inline constexpr std::size_t max_endpoints = 65536;
inline constexpr std::size_t endpoint_bytes = 64;

struct QpEndpoint {
  std::uint32_t qpn = 0;  // 24 bits
  std::uint32_t psn = 0;  // 24 bits: of the first packet this QP sends
  driver::Gid gid;        // all zero on InfiniBand without a global route
  std::uint16_t lid = 0;
  driver::GidType gid_type = driver::GidType::roce_v2;
  driver::Transport transport = driver::Transport::rc;
  std::uint32_t mtu_bytes = 1024;
  std::uint64_t address = 0;  // memory that the peer may use by rkey; bytes 0: none
  std::uint64_t bytes = 0;
  std::uint32_t rkey = 0;
  std::uint32_t qkey = 0;          // UD
  std::uint8_t reads_in = 0;       // outstanding READs and atomics it takes
  std::uint8_t reads_out = 0;      // and sends
  std::uint8_t min_rnr_timer = 0;  // the field's code, 0…31

  bool operator==(const QpEndpoint&) const = default;
};

std::vector<std::byte> encode_endpoints(std::span<const QpEndpoint> endpoints);
std::vector<QpEndpoint> decode_endpoints(std::span<const std::byte> bytes);

// The two may differ in number.
std::vector<QpEndpoint> exchange_endpoints(Socket& socket, std::span<const QpEndpoint> mine,
                                           const Deadline& deadline);

std::uint32_t negotiate_mtu(std::uint32_t mine_bytes, std::uint32_t theirs_bytes);  // the smaller
// Packets of one GID type don't reach a QP of another. Error(EPROTOTYPE) names both.
void check_gid_types(const QpEndpoint& mine, const QpEndpoint& theirs);

}  // namespace pollen::net
