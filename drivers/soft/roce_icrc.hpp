// The invariant CRC of RoCEv2: the CRC-32 of Ethernet over everything between the link layer and
// itself that no switch or router on the way may change. What may change counts as ones:
//
//   8 bytes of ones     where InfiniBand has its local route header
//   IPv4                type of service, time to live, header checksum
//   IPv6                traffic class, flow label, hop limit
//   UDP                 checksum
//   BTH                 byte 4: FECN, BECN and six reserved bits
//
// In the frame it stands least significant byte first. Pure functions, noexcept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace pollen::soft {

inline constexpr std::size_t icrc_bytes = 4;

// `network`: the IP header (without options) and the UDP header, 28 or 48 bytes. `transport`: from
// the BTH (12 bytes at least) to the end of the padding.
std::uint32_t icrc(std::span<const std::byte> network, std::span<const std::byte> transport) noexcept;

// The IPv4 identification is covered, yet a UDP socket does not tell it. Given the ICRC computed
// with identification 0 and the one received, the identification that explains the difference;
// empty when none does. One packet in 65536 that was damaged passes as another identification.
std::optional<std::uint16_t> icrc_identification(std::uint32_t computed, std::uint32_t received,
                                                 std::size_t transport_bytes) noexcept;

}  // namespace pollen::soft
