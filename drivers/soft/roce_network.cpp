#include "pollen/drivers/soft/roce_network.hpp"

#include <algorithm>
#include <array>

#include "pollen/drivers/soft/roce_cursor.hpp"

namespace pollen::soft {
namespace {

constexpr std::uint8_t protocol_udp = 17;
constexpr std::uint16_t dont_fragment = 0x4000;
constexpr std::array<std::uint8_t, 12> ipv4_mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_ipv4_mapped(const driver::Gid& gid) noexcept {
  return std::equal(ipv4_mapped.begin(), ipv4_mapped.end(), gid.bytes.begin());
}

std::uint64_t ones_sum(std::span<const std::byte> bytes, std::uint64_t sum = 0) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += std::to_integer<std::uint64_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  return sum;
}

std::uint16_t fold(std::uint64_t sum) noexcept {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

Refusal read_ipv4(std::span<const std::byte> ip, Addressing& addressing, std::size_t& packet_bytes) noexcept {
  if (ip.size() < ipv4_bytes) return Refusal::too_short;
  ByteReader reader(ip);
  const auto version_length = reader.get<std::uint8_t>();
  if (version_length >> 4 != 4) return Refusal::bad_ip_version;
  if (version_length != 0x45) return Refusal::ip_options;
  if (fold(ones_sum(ip.first(ipv4_bytes))) != 0xffff) return Refusal::bad_ip_checksum;
  addressing.traffic_class = reader.get<std::uint8_t>();
  packet_bytes = reader.get<std::uint16_t>();
  addressing.identification = reader.get<std::uint16_t>();
  if ((reader.get<std::uint16_t>() & ~dont_fragment) != 0) return Refusal::ip_fragment;
  addressing.hop_limit = reader.get<std::uint8_t>();
  if (reader.get<std::uint8_t>() != protocol_udp) return Refusal::not_roce;
  reader.skip(2);
  for (driver::Gid* gid : {&addressing.source, &addressing.destination}) {
    std::copy(ipv4_mapped.begin(), ipv4_mapped.end(), gid->bytes.begin());
    reader.get(std::span(gid->bytes).subspan(ipv4_mapped.size()));
  }
  return Refusal::none;
}

Refusal read_ipv6(std::span<const std::byte> ip, Addressing& addressing, std::size_t& packet_bytes) noexcept {
  if (ip.size() < ipv6_bytes) return Refusal::too_short;
  ByteReader reader(ip);
  const auto head = reader.get<std::uint32_t>();
  if (head >> 28 != 6) return Refusal::bad_ip_version;
  addressing.traffic_class = static_cast<std::uint8_t>(head >> 20);
  packet_bytes = ipv6_bytes + reader.get<std::uint16_t>();
  if (reader.get<std::uint8_t>() != protocol_udp) return Refusal::not_roce;
  addressing.hop_limit = reader.get<std::uint8_t>();
  reader.get(std::span(addressing.source.bytes));
  reader.get(std::span(addressing.destination.bytes));
  return ip_version(addressing) == IpVersion::v6 ? Refusal::none : Refusal::mixed_addresses;
}

// Or isn't there. `udp`: the header and all that the checksum covers.
bool udp_checksum_holds(std::span<const std::byte> ip_addresses, std::span<const std::byte> udp) noexcept {
  if (udp[6] == std::byte{0} && udp[7] == std::byte{0}) return true;
  return fold(ones_sum(udp, ones_sum(ip_addresses, protocol_udp + udp.size()))) == 0xffff;
}

}  // namespace

std::optional<IpVersion> ip_version(const Addressing& addressing) noexcept {
  const bool source = is_ipv4_mapped(addressing.source);
  if (source != is_ipv4_mapped(addressing.destination)) return std::nullopt;
  return source ? IpVersion::v4 : IpVersion::v6;
}

void write_ip(const Addressing& addressing, IpVersion version, std::size_t ip_payload_bytes,
              std::span<std::byte> out) noexcept {
  ByteWriter writer(out);
  if (version == IpVersion::v4) {
    writer.put(std::uint8_t{0x45});
    writer.put(addressing.traffic_class);
    writer.put(static_cast<std::uint16_t>(ipv4_bytes + ip_payload_bytes));
    writer.put(addressing.identification);
    writer.put(dont_fragment);
    writer.put(addressing.hop_limit);
    writer.put(protocol_udp);
    writer.put(std::uint16_t{0});
    writer.put(std::span(addressing.source.bytes).subspan(ipv4_mapped.size()));
    writer.put(std::span(addressing.destination.bytes).subspan(ipv4_mapped.size()));
    ByteWriter(out.subspan(10)).put(static_cast<std::uint16_t>(~fold(ones_sum(out.first(ipv4_bytes)))));
  } else {
    writer.put(6u << 28 | std::uint32_t{addressing.traffic_class} << 20);
    writer.put(static_cast<std::uint16_t>(ip_payload_bytes));
    writer.put(protocol_udp);
    writer.put(addressing.hop_limit);
    writer.put(std::span(addressing.source.bytes));
    writer.put(std::span(addressing.destination.bytes));
  }
}

void write_ip_udp(const Addressing& addressing, IpVersion version, std::size_t udp_payload_bytes,
                  std::span<std::byte> out) noexcept {
  write_ip(addressing, version, udp_bytes + udp_payload_bytes, out);
  ByteWriter writer(out.subspan(ip_bytes(version)));
  writer.put(addressing.udp_source_port);
  writer.put(roce_port);
  writer.put(static_cast<std::uint16_t>(udp_bytes + udp_payload_bytes));
  writer.put(std::uint16_t{0});
}

Refusal read_ip_udp(std::span<const std::byte> bytes, IpVersion version, Addressing& addressing,
                    std::size_t& packet_bytes) noexcept {
  const Refusal refusal = version == IpVersion::v4 ? read_ipv4(bytes, addressing, packet_bytes)
                                                   : read_ipv6(bytes, addressing, packet_bytes);
  if (refusal != Refusal::none) return refusal;
  const std::size_t header_bytes = ip_bytes(version);
  if (packet_bytes < header_bytes + udp_bytes) return Refusal::bad_length;
  if (packet_bytes > bytes.size()) return Refusal::too_short;

  const auto udp = bytes.first(packet_bytes).subspan(header_bytes);
  ByteReader reader(udp);
  addressing.udp_source_port = reader.get<std::uint16_t>();
  if (reader.get<std::uint16_t>() != roce_port) return Refusal::not_roce;
  if (reader.get<std::uint16_t>() != udp.size()) return Refusal::bad_length;
  const auto addresses = bytes.first(header_bytes).last(version == IpVersion::v4 ? 8 : 32);
  return udp_checksum_holds(addresses, udp) ? Refusal::none : Refusal::bad_udp_checksum;
}

}  // namespace pollen::soft
