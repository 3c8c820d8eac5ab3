// Whatever decode accepts, encode writes again as a frame of the same meaning; and a frame that
// encode writes is accepted. Build with -fsanitize=fuzzer,address,undefined.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "pollen/drivers/soft/roce.hpp"
#include "pollen/drivers/soft/roce_icrc.hpp"

using namespace pollen::soft;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// A fuzzer does not guess checksums: they are put right, so that it gets past them.
void put_sums_right(std::span<std::byte> frame) {
  const bool ipv4 = frame[12] == std::byte{0x08};
  const std::size_t network_bytes = ipv4 ? 28 : 48;
  if (frame.size() < 14 + network_bytes + 12 + icrc_bytes) return;
  const auto ip = frame.subspan(14);
  const auto set = [](std::span<std::byte> at, std::size_t value) {
    at[0] = static_cast<std::byte>(value >> 8);
    at[1] = static_cast<std::byte>(value & 0xff);
  };
  if (ipv4) {
    ip[0] = std::byte{0x45};
    set(ip.subspan(2), ip.size());
    set(ip.subspan(10), 0);
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < 20; i += 2)
      sum += std::to_integer<std::uint32_t>(ip[i]) << 8 | std::to_integer<std::uint32_t>(ip[i + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    set(ip.subspan(10), ~sum & 0xffff);
  } else {
    set(ip.subspan(4), ip.size() - 40);
  }
  const auto udp = ip.subspan(network_bytes - 8);
  set(udp.subspan(2), roce_port);
  set(udp.subspan(4), udp.size());
  set(udp.subspan(6), 0);
  const auto transport = udp.subspan(8, udp.size() - 8 - icrc_bytes);
  std::uint32_t value = icrc(ip.first(network_bytes), transport);
  for (std::byte& byte : udp.last(icrc_bytes)) {
    byte = static_cast<std::byte>(value & 0xff);
    value >>= 8;
  }
}

void check_same(const Decoded& a, const Decoded& b) {
  require(std::memcmp(&a.packet, &b.packet, sizeof a.packet) == 0);
  require(a.payload.size() == b.payload.size());
  require(a.payload.empty() || std::memcmp(a.payload.data(), b.payload.data(), a.payload.size()) == 0);
  require(a.addressing == b.addressing);
}

void check_accepted(std::span<const std::byte> frame, const Decoded& decoded) {
  require(decoded.payload.size() == decoded.packet.payload_bytes);
  require(decoded.payload.empty() ||
          (decoded.payload.data() >= frame.data() &&
           decoded.payload.data() + decoded.payload.size() <= frame.data() + frame.size()));
  std::vector<std::byte> again(max_frame_bytes);
  const std::size_t bytes = encode(decoded.packet, decoded.payload, decoded.addressing, again);
  require(bytes != 0 && bytes <= frame.size());
  again.resize(bytes);
  const Decoded twice = decode(again);
  require(static_cast<bool>(twice));
  check_same(decoded, twice);

  std::vector<std::byte> udp(max_frame_bytes);
  udp.resize(encode_udp_payload(decoded.packet, decoded.payload, decoded.addressing, udp));
  require(!udp.empty());
  const Decoded known = decode_udp_payload(udp, decoded.addressing);
  require(static_cast<bool>(known));
  check_same(decoded, known);
  const Decoded unknown = decode_udp_payload(udp, decoded.addressing, Identification::unknown);
  require(static_cast<bool>(unknown));
  check_same(decoded, unknown);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto raw = std::as_bytes(std::span(data, size));
  if (const Decoded decoded = decode(raw)) check_accepted(raw, decoded);
  decode_udp_payload(raw, decode(raw).addressing, Identification::unknown);
  if (size < 14) return 0;
  std::vector<std::byte> mended(raw.begin(), raw.end());
  put_sums_right(mended);
  if (const Decoded decoded = decode(mended)) check_accepted(mended, decoded);
  return 0;
}
