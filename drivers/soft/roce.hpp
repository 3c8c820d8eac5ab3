// RoCEv2 frames: a Packet and its payload to bytes and back.
//
//   Ethernet   | destination MAC 6 | source MAC 6 | type 2: 0800 or 86dd |
//   IPv4 20    | 45 | TOS | length 2 | identification 2 | DF 2 | TTL | 17 | checksum 2 | source 4 | dest. 4 |
//   or IPv6 40 | 6, class, flow label 4 | length 2 | 17 | hop limit | source 16 | destination 16 |
//   UDP 8      | source port 2 | 4791 2 | length 2 | checksum 2 |
//   BTH 12     | opcode | S M PadCnt Ver | partition key 2 | F B 000000 | dest. QP 3 | A 0000000 | PSN 3 |
//   DETH 8     | queue key 4 | 0 | source QP 3 |
//   RETH 16    | virtual address 8 | rkey 4 | DMA length 4 |
//   AtomicETH  | virtual address 8 | rkey 4 | swap or add 8 | compare 8 |
//   AETH 4     | syndrome | MSN 3 |
//   AtomicAck  | original value 8 |
//   ImmDt 4    | immediate |         IETH 4     | rkey |
//   payload    | … | PadCnt zeros, to a multiple of 4 |
//   ICRC 4     (roce_icrc.hpp)
//
// Of the extension headers a packet has those of its opcode (roce_opcode.hpp), in this order. All
// fields but the ICRC are big-endian; an immediate is written as the number that Packet::imm holds.
// IPv4 when both GIDs are IPv4-mapped, IPv6 when neither is. The UDP checksum is written as 0, as
// NICs do, and may be 0 on the way in.
//
// Data path: noexcept, nothing allocated. Pure functions, for any thread. What decode reads may be
// hostile; the payload it returns lies in the bytes it was given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/soft/packet.hpp"

namespace pollen::soft {

inline constexpr std::uint16_t roce_port = 4791;
// Ethernet, IPv6, UDP, BTH, the longest extensions before a payload, the payload, ICRC.
inline constexpr std::size_t max_frame_bytes = 14 + 40 + 8 + 12 + 20 + max_mtu_bytes + 4;
inline constexpr std::size_t grh_bytes = 40;

struct Addressing {
  driver::Gid source;
  driver::Gid destination;
  std::array<std::uint8_t, 6> source_mac{};
  std::array<std::uint8_t, 6> destination_mac{};
  std::uint16_t udp_source_port = 0xc000;
  std::uint16_t identification = 0;  // IPv4 only; Linux too writes 0 when it may not fragment
  std::uint8_t hop_limit = 64;
  std::uint8_t traffic_class = 0;

  bool operator==(const Addressing&) const = default;
};

// Why bytes are not a packet of ours.
enum class Refusal : std::uint8_t {
  none,
  too_short,  // ends before its headers or its own lengths say
  not_roce,   // not IP, not UDP, or another port
  bad_ip_version,
  ip_options,
  ip_fragment,
  bad_ip_checksum,
  bad_udp_checksum,
  bad_icrc,
  bad_version,      // of the BTH
  bad_opcode,       // one that this NIC does not speak
  bad_length,       // lengths that disagree, or that the opcode can't have
  mixed_addresses,  // one GID IPv4-mapped, the other not
};
std::string_view name(Refusal refusal) noexcept;

struct Decoded {
  Refusal refusal = Refusal::none;  // anything else: the rest means nothing
  Packet packet{};                  // headers that the opcode doesn't have are 0; gid_index and pad too
  std::span<const std::byte> payload;
  Addressing addressing;

  explicit operator bool() const noexcept { return refusal == Refusal::none; }
};

// Each returns the bytes written, or 0 when `out` is too small, the opcode is unknown, the payload is
// longer than max_mtu_bytes or of an opcode that has none, or the GIDs are mixed. The payload's size
// counts, not packet.payload_bytes. PSN and QP numbers are cut to 24 bits.
std::size_t encode(const Packet& packet, std::span<const std::byte> payload, const Addressing& addressing,
                   std::span<std::byte> out) noexcept;
// From the BTH to the ICRC only: what a UDP socket sends. IPv4 must leave with DF set and
// addressing.identification, or the ICRC is wrong.
std::size_t encode_udp_payload(const Packet& packet, std::span<const std::byte> payload,
                               const Addressing& addressing, std::span<std::byte> out) noexcept;

// A frame may be padded up to Ethernet's minimum of 60 bytes; nothing else may follow the packet.
Decoded decode(std::span<const std::byte> frame) noexcept;

// Whether addressing.identification is what the IPv4 header had. A UDP socket can't tell, and some
// senders don't write 0: then it is worked out from the ICRC (see icrc_identification) and returned.
enum class Identification : std::uint8_t { known, unknown };
Decoded decode_udp_payload(std::span<const std::byte> bytes, const Addressing& addressing,
                           Identification identification = Identification::known) noexcept;

// The 40 bytes before a UD payload in the receiver's buffer: the packet's IP header. IPv4 takes the
// last 20 and leaves zeros before them. False: the op has no frame, or the GIDs are mixed.
bool make_grh(const Addressing& addressing, PacketOp op, std::size_t payload_bytes,
              std::span<std::byte, grh_bytes> grh) noexcept;

}  // namespace pollen::soft
