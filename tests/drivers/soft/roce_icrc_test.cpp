#include "pollen/drivers/soft/roce_icrc.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "roce_frames.hpp"

using namespace pollen::soft;
using pollen::soft::test::from_hex;

namespace {

// Of an IPv4 packet without Ethernet header.
std::uint32_t icrc_of(std::span<const std::byte> packet) {
  return icrc(packet.first(28), packet.subspan(28, packet.size() - 28 - icrc_bytes));
}

// The definition, bit by bit, over a whole frame.
std::uint32_t icrc_by_definition(std::span<const std::byte> whole, bool ipv4) {
  std::vector<std::byte> frame(whole.begin() + 14, whole.end() - icrc_bytes);
  const std::size_t bth_at = ipv4 ? 28 : 48;
  const auto mask = ipv4 ? std::vector<std::size_t>{1, 8, 10, 11} : std::vector<std::size_t>{1, 2, 3, 7};
  for (const std::size_t at : mask) frame[at] = std::byte{0xff};
  if (!ipv4) frame[0] = std::byte{0x6f};
  frame[bth_at - 2] = frame[bth_at - 1] = frame[bth_at + 4] = std::byte{0xff};
  frame.insert(frame.begin(), 8, std::byte{0xff});
  std::uint32_t crc = 0xffffffff;
  for (const std::byte byte : frame) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

}  // namespace

TEST_SUITE("soft.roce_icrc") {
  TEST_CASE("the ICRC is the one that a ConnectX-4 Lx put into a congestion notification") {
    const auto packet = from_hex(
        "45c2003c718c400040119161 0a001101 0a001201 000012b700280000"
        "8100ffff4000011800000000 00000000000000000000000000000000 82fd002a");
    CHECK(icrc_of(packet) == 0x2a00fd82);  // least significant byte first
  }

  TEST_CASE("type of service and UDP checksum don't count: a captured UC SEND has both") {
    const auto packet = from_hex(
        "450100400478400040 11b4d5c0a80007c0a80007 c00012b7002caca2"
        "2460ffff000000d300cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3");
    CHECK(icrc_of(packet) == 0xf353f378);
  }

  TEST_CASE("every opcode's ICRC is that of the definition, over IPv4 and IPv6") {
    for (const bool ipv4 : {true, false}) {
      for (const PacketOp op : test::all_ops()) {
        const auto frame = test::sample_frame(op, test::has_payload(op) ? 30 : 0, ipv4);
        std::uint32_t written = 0;
        for (std::size_t i = 0; i < 4; ++i)
          written |= std::to_integer<std::uint32_t>(frame[frame.size() - 4 + i]) << 8 * i;
        CHECK(written == icrc_by_definition(frame, ipv4));
      }
    }
  }

  TEST_CASE("any identification is found from the ICRC that it made, at any length") {
    for (const std::size_t payload_bytes : {0u, 4u, 64u, 1024u, 4096u}) {
      const auto frame = test::sample_frame(PacketOp::send_only, payload_bytes, true);
      std::vector<std::byte> network(frame.begin() + 14, frame.begin() + 42);
      const auto transport = std::span(frame).subspan(42, frame.size() - 42 - icrc_bytes);
      network[4] = network[5] = std::byte{0};
      const std::uint32_t without = icrc(network, transport);
      for (const std::uint32_t identification : {0x0000u, 0x0001u, 0x0100u, 0x1234u, 0xffffu}) {
        network[4] = static_cast<std::byte>(identification >> 8);
        network[5] = static_cast<std::byte>(identification & 0xff);
        const auto found = icrc_identification(without, icrc(network, transport), transport.size());
        REQUIRE(found);
        CHECK(*found == identification);
      }
    }
  }

  TEST_CASE("no identification explains a damaged bit") {
    const auto frame = test::sample_frame(PacketOp::send_only, 64, true);
    const auto network = std::span(frame).subspan(14, 28);
    std::vector<std::byte> transport(frame.begin() + 42, frame.end() - icrc_bytes);
    const std::uint32_t whole = icrc(network, transport);
    for (std::size_t bit = 0; bit < transport.size() * 8; ++bit) {
      if (bit / 8 == 4) continue;  // of the BTH: not covered
      const std::byte flip = static_cast<std::byte>(1 << bit % 8);
      transport[bit / 8] ^= flip;
      CHECK_FALSE(icrc_identification(icrc(network, transport), whole, transport.size()));
      transport[bit / 8] ^= flip;
    }
  }
}
