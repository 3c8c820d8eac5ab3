#include "pollen/drivers/soft/roce.hpp"

#include <algorithm>
#include <optional>

#include "pollen/drivers/soft/roce_cursor.hpp"
#include "pollen/drivers/soft/roce_icrc.hpp"
#include "pollen/drivers/soft/roce_network.hpp"
#include "pollen/drivers/soft/roce_opcode.hpp"

namespace pollen::soft {
namespace {

constexpr std::size_t ethernet_bytes = 14;
constexpr std::size_t min_ethernet_bytes = 60;  // without the checksum that no one sees
constexpr std::uint16_t type_ipv4 = 0x0800;
constexpr std::uint16_t type_ipv6 = 0x86dd;

constexpr std::size_t pad_bytes(std::size_t payload_bytes) noexcept { return -payload_bytes & 3; }

// From the BTH to the padding. 0: no such packet.
std::size_t transport_bytes(PacketOp op, std::size_t payload_bytes) noexcept {
  const std::uint16_t parts = packet_parts(op);
  const std::size_t limit = parts & part_payload ? max_mtu_bytes : 0;
  if (parts == 0 || payload_bytes > limit) return 0;
  return bth_bytes + extension_bytes(parts) + payload_bytes + pad_bytes(payload_bytes);
}

void write_transport(const Packet& packet, std::span<const std::byte> payload,
                     std::span<std::byte> out) noexcept {
  ByteWriter writer(out);
  const std::size_t pad = pad_bytes(payload.size());
  writer.put(static_cast<std::uint8_t>(packet.op));
  // MigReq is set: a QP without an alternate path counts as migrated.
  writer.put(static_cast<std::uint8_t>((packet.flags & packet_solicited ? 0x80 : 0) | 0x40 | pad << 4));
  writer.put(packet.pkey);
  writer.put(packet.dest_qpn & psn_mask);
  writer.put((packet.flags & packet_ack_request ? 1u << 31 : 0u) | (packet.psn & psn_mask));

  const std::uint16_t parts = packet_parts(packet.op);
  if (parts & part_deth) {
    writer.put(packet.rkey);
    writer.put(packet.dma_bytes & psn_mask);
  }
  if (parts & part_reth) {
    writer.put(packet.address);
    writer.put(packet.rkey);
    writer.put(packet.dma_bytes);
  }
  if (parts & part_atomic) {
    writer.put(packet.address);
    writer.put(packet.rkey);
    writer.put(packet.atomic.swap_add);
    writer.put(packet.atomic.compare);
  }
  if (parts & part_aeth) writer.put(packet.aeth);
  if (parts & part_atomic_ack) writer.put(packet.atomic_original);
  if (parts & (part_imm | part_ieth)) writer.put(packet.imm);
  writer.put(payload);
  for (std::size_t i = 0; i < pad; ++i) writer.put(std::uint8_t{0});
}

void write_icrc(std::uint32_t value, std::span<std::byte> out) noexcept {
  for (std::byte& byte : out.first(icrc_bytes)) {
    byte = std::byte{static_cast<std::uint8_t>(value)};
    value >>= 8;
  }
}

std::uint32_t read_icrc(std::span<const std::byte> bytes) noexcept {
  std::uint32_t value = 0;
  for (std::size_t i = icrc_bytes; i-- > 0;) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

// `transport` without its ICRC, which has been found right.
Refusal read_transport(std::span<const std::byte> transport, Decoded& decoded) noexcept {
  Packet& packet = decoded.packet;
  ByteReader reader(transport);
  packet.op = static_cast<PacketOp>(reader.get<std::uint8_t>());
  const auto bits = reader.get<std::uint8_t>();
  packet.pkey = reader.get<std::uint16_t>();
  packet.dest_qpn = reader.get<std::uint32_t>() & psn_mask;
  const auto ack_psn = reader.get<std::uint32_t>();
  packet.psn = ack_psn & psn_mask;
  packet.flags = static_cast<std::uint8_t>((bits & 0x80 ? packet_solicited : 0) |
                                           (ack_psn >> 31 != 0 ? packet_ack_request : 0));
  if ((bits & 0xf) != 0) return Refusal::bad_version;

  const std::uint16_t parts = packet_parts(packet.op);
  if (parts == 0) return Refusal::bad_opcode;
  const std::size_t before_payload = bth_bytes + extension_bytes(parts);
  const std::size_t pad = bits >> 4 & 3;
  if (transport.size() % 4 != 0 || transport.size() < before_payload + pad) return Refusal::bad_length;
  const std::size_t payload_bytes = transport.size() - before_payload - pad;
  if (transport_bytes(packet.op, payload_bytes) != transport.size()) return Refusal::bad_length;

  if (parts & part_deth) {
    packet.rkey = reader.get<std::uint32_t>();
    packet.dma_bytes = reader.get<std::uint32_t>() & psn_mask;
  }
  if (parts & part_reth) {
    packet.address = reader.get<std::uint64_t>();
    packet.rkey = reader.get<std::uint32_t>();
    packet.dma_bytes = reader.get<std::uint32_t>();
  }
  if (parts & part_atomic) {
    packet.address = reader.get<std::uint64_t>();
    packet.rkey = reader.get<std::uint32_t>();
    const auto swap_add = reader.get<std::uint64_t>();
    packet.atomic = {.swap_add = swap_add, .compare = reader.get<std::uint64_t>()};
  }
  if (parts & part_aeth) packet.aeth = reader.get<std::uint32_t>();
  if (parts & part_atomic_ack) packet.atomic_original = reader.get<std::uint64_t>();
  if (parts & (part_imm | part_ieth)) packet.imm = reader.get<std::uint32_t>();
  packet.payload_bytes = static_cast<std::uint16_t>(payload_bytes);
  decoded.payload = transport.subspan(before_payload, payload_bytes);
  return Refusal::none;
}

Refusal read_frame(std::span<const std::byte> frame, Decoded& decoded) noexcept {
  if (frame.size() < ethernet_bytes) return Refusal::too_short;
  Addressing& addressing = decoded.addressing;
  ByteReader reader(frame);
  reader.get(std::span(addressing.destination_mac));
  reader.get(std::span(addressing.source_mac));
  const auto type = reader.get<std::uint16_t>();
  if (type != type_ipv4 && type != type_ipv6) return Refusal::not_roce;
  const IpVersion version = type == type_ipv4 ? IpVersion::v4 : IpVersion::v6;
  const auto ip = frame.subspan(ethernet_bytes);
  std::size_t packet_bytes = 0;
  const Refusal refusal = read_ip_udp(ip, version, addressing, packet_bytes);
  if (refusal != Refusal::none) return refusal;
  if (packet_bytes < ip.size() && frame.size() > min_ethernet_bytes) return Refusal::bad_length;
  const std::size_t network_bytes = ip_bytes(version) + udp_bytes;
  if (packet_bytes < network_bytes + bth_bytes + icrc_bytes) return Refusal::too_short;

  const auto packet = ip.first(packet_bytes);
  const auto transport = packet.subspan(network_bytes, packet_bytes - network_bytes - icrc_bytes);
  if (icrc(packet.first(network_bytes), transport) != read_icrc(packet.last(icrc_bytes)))
    return Refusal::bad_icrc;
  return read_transport(transport, decoded);
}

Refusal read_udp_payload(std::span<const std::byte> bytes, Identification identification,
                         Decoded& decoded) noexcept {
  if (bytes.size() < bth_bytes + icrc_bytes) return Refusal::too_short;
  if (bytes.size() > max_frame_bytes) return Refusal::bad_length;
  const auto version = ip_version(decoded.addressing);
  if (!version) return Refusal::mixed_addresses;
  const bool unknown = version == IpVersion::v4 && identification == Identification::unknown;
  if (unknown) decoded.addressing.identification = 0;

  std::array<std::byte, ipv6_bytes + udp_bytes> header;
  const auto network = std::span(header).first(ip_bytes(*version) + udp_bytes);
  write_ip_udp(decoded.addressing, *version, bytes.size(), network);
  const auto transport = bytes.first(bytes.size() - icrc_bytes);
  const std::uint32_t computed = icrc(network, transport);
  const std::uint32_t received = read_icrc(bytes.last(icrc_bytes));
  if (unknown) {
    const auto found = icrc_identification(computed, received, transport.size());
    if (!found) return Refusal::bad_icrc;
    decoded.addressing.identification = *found;
  } else if (computed != received) {
    return Refusal::bad_icrc;
  }
  return read_transport(transport, decoded);
}

}  // namespace

std::string_view name(Refusal refusal) noexcept {
  switch (refusal) {
    case Refusal::none:
      return "none";
    case Refusal::too_short:
      return "too short";
    case Refusal::not_roce:
      return "not RoCEv2";
    case Refusal::bad_ip_version:
      return "wrong IP version";
    case Refusal::ip_options:
      return "IPv4 options";
    case Refusal::ip_fragment:
      return "IP fragment";
    case Refusal::bad_ip_checksum:
      return "wrong IPv4 checksum";
    case Refusal::bad_udp_checksum:
      return "wrong UDP checksum";
    case Refusal::bad_icrc:
      return "wrong ICRC";
    case Refusal::bad_version:
      return "unknown transport version";
    case Refusal::bad_opcode:
      return "unknown opcode";
    case Refusal::bad_length:
      return "wrong length";
    case Refusal::mixed_addresses:
      return "IPv4 and IPv6 mixed";
  }
  return "unknown";
}

std::size_t encode(const Packet& packet, std::span<const std::byte> payload, const Addressing& addressing,
                   std::span<std::byte> out) noexcept {
  const std::size_t transport = transport_bytes(packet.op, payload.size());
  const auto version = ip_version(addressing);
  if (transport == 0 || !version) return 0;
  const std::size_t network = ip_bytes(*version) + udp_bytes;
  const std::size_t frame = ethernet_bytes + network + transport + icrc_bytes;
  if (out.size() < frame) return 0;

  ByteWriter writer(out);
  writer.put(std::span(addressing.destination_mac));
  writer.put(std::span(addressing.source_mac));
  writer.put(*version == IpVersion::v4 ? type_ipv4 : type_ipv6);
  const auto ip = out.subspan(ethernet_bytes);
  write_ip_udp(addressing, *version, transport + icrc_bytes, ip);
  const auto bth = ip.subspan(network);
  write_transport(packet, payload, bth);
  write_icrc(icrc(ip.first(network), bth.first(transport)), bth.subspan(transport));
  return frame;
}

std::size_t encode_udp_payload(const Packet& packet, std::span<const std::byte> payload,
                               const Addressing& addressing, std::span<std::byte> out) noexcept {
  const std::size_t transport = transport_bytes(packet.op, payload.size());
  const auto version = ip_version(addressing);
  if (transport == 0 || !version || out.size() < transport + icrc_bytes) return 0;
  std::array<std::byte, ipv6_bytes + udp_bytes> header;
  const auto network = std::span(header).first(ip_bytes(*version) + udp_bytes);
  write_ip_udp(addressing, *version, transport + icrc_bytes, network);
  write_transport(packet, payload, out);
  write_icrc(icrc(network, out.first(transport)), out.subspan(transport));
  return transport + icrc_bytes;
}

Decoded decode(std::span<const std::byte> frame) noexcept {
  Decoded decoded;
  decoded.refusal = read_frame(frame, decoded);
  return decoded;
}

Decoded decode_udp_payload(std::span<const std::byte> bytes, const Addressing& addressing,
                           Identification identification) noexcept {
  Decoded decoded;
  decoded.addressing = addressing;
  decoded.refusal = read_udp_payload(bytes, identification, decoded);
  return decoded;
}

bool make_grh(const Addressing& addressing, PacketOp op, std::size_t payload_bytes,
              std::span<std::byte, grh_bytes> grh) noexcept {
  const std::size_t transport = transport_bytes(op, payload_bytes);
  const auto version = ip_version(addressing);
  if (transport == 0 || !version) return false;
  std::fill(grh.begin(), grh.end(), std::byte{0});
  write_ip(addressing, *version, udp_bytes + transport + icrc_bytes, grh.last(ip_bytes(*version)));
  return true;
}

}  // namespace pollen::soft
