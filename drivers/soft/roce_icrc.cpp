#include "pollen/drivers/soft/roce_icrc.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>

#include "pollen/drivers/soft/roce_network.hpp"
#include "pollen/drivers/soft/roce_opcode.hpp"

namespace pollen::soft {
namespace {

constexpr std::size_t route_bytes = 8;
constexpr std::byte ones{0xff};

std::uint32_t crc(std::uint32_t before, std::span<const std::byte> bytes) noexcept {
  return static_cast<std::uint32_t>(
      crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace

std::uint32_t icrc(std::span<const std::byte> network, std::span<const std::byte> transport) noexcept {
  std::array<std::byte, route_bytes + ipv6_bytes + udp_bytes + bth_bytes> masked;
  std::fill_n(masked.begin(), route_bytes, ones);
  const auto ip = masked.begin() + route_bytes;
  std::copy(network.begin(), network.end(), ip);
  if (network.size() == ipv4_bytes + udp_bytes) {
    ip[1] = ip[8] = ip[10] = ip[11] = ones;
  } else {
    ip[0] |= std::byte{0x0f};
    ip[1] = ip[2] = ip[3] = ip[7] = ones;
  }
  const auto bth = ip + static_cast<std::ptrdiff_t>(network.size());
  bth[-2] = bth[-1] = ones;
  std::copy_n(transport.begin(), bth_bytes, bth);
  bth[4] = ones;
  const std::uint32_t head = crc(0, {masked.begin(), bth + bth_bytes});
  return crc(head, transport.subspan(bth_bytes));
}

std::optional<std::uint16_t> icrc_identification(std::uint32_t computed, std::uint32_t received,
                                                 std::size_t transport_bytes) noexcept {
  // A CRC is linear: the difference is that of the identification's two bytes, shifted through the
  // bytes from them to the end. A shift by 2^32 - 1 bytes is none (the polynomial is primitive), so
  // shifting by the rest of such a turn undoes it.
  const std::size_t shifted = ipv4_bytes + udp_bytes + transport_bytes - 4;
  const auto before = static_cast<std::uint32_t>(
      crc32_combine(computed ^ received, 0, static_cast<z_off_t>(0xffffffffu - shifted)));
  if (before > 0xffff) return std::nullopt;
  return static_cast<std::uint16_t>((before & 0xff) << 8 | before >> 8);
}

}  // namespace pollen::soft
