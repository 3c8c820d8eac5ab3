// The IP and UDP headers of a RoCEv2 packet. See roce.hpp for their layout and for the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "pollen/drivers/soft/roce.hpp"

namespace pollen::soft {

inline constexpr std::size_t ipv4_bytes = 20;
inline constexpr std::size_t ipv6_bytes = 40;
inline constexpr std::size_t udp_bytes = 8;

enum class IpVersion : std::uint8_t { v4, v6 };

constexpr std::size_t ip_bytes(IpVersion version) noexcept {
  return version == IpVersion::v4 ? ipv4_bytes : ipv6_bytes;
}

// Empty: one GID is IPv4-mapped and the other is not.
std::optional<IpVersion> ip_version(const Addressing& addressing) noexcept;

// Both need addresses of that version, and room for ip_bytes(version), the second for udp_bytes more.
void write_ip(const Addressing& addressing, IpVersion version, std::size_t ip_payload_bytes,
              std::span<std::byte> out) noexcept;
void write_ip_udp(const Addressing& addressing, IpVersion version, std::size_t udp_payload_bytes,
                  std::span<std::byte> out) noexcept;

// Checks both headers and the checksums that there are. `bytes` may go on after the packet: then
// packet_bytes says where it ends, which is not before the UDP header's end.
Refusal read_ip_udp(std::span<const std::byte> bytes, IpVersion version, Addressing& addressing,
                    std::size_t& packet_bytes) noexcept;

}  // namespace pollen::soft
