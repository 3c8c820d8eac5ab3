#include "pollen/drivers/soft/roce.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "pollen/drivers/soft/roce_icrc.hpp"
#include "roce_frames.hpp"

using namespace pollen::soft;
using namespace pollen::soft::test;

namespace {

constexpr std::size_t ethernet_bytes = 14;

std::vector<std::size_t> payload_sizes(PacketOp op) {
  return has_payload(op) ? std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 1024, 4095, 4096}
                         : std::vector<std::size_t>{0};
}

void set_icrc(std::vector<std::byte>& frame, bool ipv4) {
  const std::size_t network_bytes = ipv4 ? 28 : 48;
  const std::size_t transport_at = ethernet_bytes + network_bytes;
  const auto all = std::span(frame);
  std::uint32_t value = icrc(all.subspan(ethernet_bytes, network_bytes),
                             all.subspan(transport_at, frame.size() - transport_at - icrc_bytes));
  for (std::byte& byte : all.last(icrc_bytes)) {
    byte = static_cast<std::byte>(value & 0xff);
    value >>= 8;
  }
}

void set_u16(std::vector<std::byte>& frame, std::size_t at, std::size_t value) {
  frame[at] = static_cast<std::byte>(value >> 8);
  frame[at + 1] = static_cast<std::byte>(value & 0xff);
}

std::uint32_t ones_sum(std::span<const std::byte> bytes, std::uint32_t sum) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += std::to_integer<std::uint32_t>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

void set_ipv4_checksum(std::vector<std::byte>& frame) {
  set_u16(frame, 24, 0);
  set_u16(frame, 24, ~ones_sum(std::span(frame).subspan(14, 20), 0) & 0xffff);
}

// Lengths, checksum and ICRC made right again after the transport part was cut or grown.
void set_lengths(std::vector<std::byte>& frame, bool ipv4) {
  const std::size_t ip_header_bytes = ipv4 ? 20 : 40;
  const std::size_t udp_at = ethernet_bytes + ip_header_bytes;
  if (ipv4) {
    set_u16(frame, 16, frame.size() - ethernet_bytes);
    set_ipv4_checksum(frame);
  } else {
    set_u16(frame, 18, frame.size() - udp_at);
  }
  set_u16(frame, udp_at + 4, frame.size() - udp_at);
  set_icrc(frame, ipv4);
}

std::vector<std::byte> ipv4_frame() { return sample_frame(PacketOp::write_only_imm, 5, true); }

}  // namespace

TEST_SUITE("soft.roce") {
  TEST_CASE("a packet of any opcode and length comes back from its frame as it was") {
    for (const bool ipv4 : {true, false}) {
      for (const PacketOp op : all_ops()) {
        for (const std::size_t bytes : payload_sizes(op)) {
          CAPTURE(static_cast<int>(op));
          CAPTURE(bytes);
          const auto payload = sample_payload(bytes);
          const auto frame = sample_frame(op, bytes, ipv4);
          REQUIRE(frame.size() == ethernet_bytes + (ipv4 ? 28 : 48) + 12 + extension_bytes(packet_parts(op)) +
                                      (bytes + 3) / 4 * 4 + 4);
          const Decoded decoded = decode(frame);
          REQUIRE(decoded.refusal == Refusal::none);
          CHECK(same(decoded.packet, sample_packet(op, bytes)));
          CHECK(std::equal(decoded.payload.begin(), decoded.payload.end(), payload.begin(), payload.end()));
          CHECK(decoded.addressing == sample_addressing(ipv4));
        }
      }
    }
  }

  TEST_CASE("all 25 opcodes of Packet have a frame and no other has") {
    CHECK(all_ops().size() == 25);
    std::vector<std::byte> out(max_frame_bytes);
    Packet packet = sample_packet(PacketOp::send_only, 0);
    for (int op = 0; op < 256; ++op) {
      packet.op = static_cast<PacketOp>(op);
      CHECK((encode(packet, {}, sample_addressing(true), out) != 0) == (packet_parts(packet.op) != 0));
    }
  }

  TEST_CASE("what a UDP socket would send is the frame's last part") {
    for (const bool ipv4 : {true, false}) {
      for (const PacketOp op : all_ops()) {
        const std::size_t bytes = has_payload(op) ? 7 : 0;
        const auto frame = sample_frame(op, bytes, ipv4);
        std::vector<std::byte> sent(max_frame_bytes);
        sent.resize(encode_udp_payload(sample_packet(op, bytes), sample_payload(bytes),
                                       sample_addressing(ipv4), sent));
        REQUIRE(sent.size() == frame.size() - ethernet_bytes - (ipv4 ? 28 : 48));
        CHECK(std::equal(sent.begin(), sent.end(), frame.end() - static_cast<std::ptrdiff_t>(sent.size())));
        const Decoded decoded = decode_udp_payload(sent, sample_addressing(ipv4));
        REQUIRE(decoded.refusal == Refusal::none);
        CHECK(same(decoded.packet, sample_packet(op, bytes)));
        CHECK(decoded.payload.size() == bytes);
      }
    }
  }

  TEST_CASE("the ICRC of a UDP payload depends on the addresses, ports and identification around it") {
    std::vector<std::byte> sent(max_frame_bytes);
    const Addressing addressing = sample_addressing(true);
    sent.resize(
        encode_udp_payload(sample_packet(PacketOp::send_only, 8), sample_payload(8), addressing, sent));
    Addressing other = addressing;
    other.hop_limit = 1;
    other.traffic_class = 0;
    CHECK(decode_udp_payload(sent, other));
    other = addressing;
    other.source.bytes[15] = 9;
    CHECK(decode_udp_payload(sent, other).refusal == Refusal::bad_icrc);
    other = addressing;
    ++other.udp_source_port;
    CHECK(decode_udp_payload(sent, other).refusal == Refusal::bad_icrc);
    other = addressing;
    other.identification = 0;
    CHECK(decode_udp_payload(sent, other).refusal == Refusal::bad_icrc);
    const Decoded decoded = decode_udp_payload(sent, other, Identification::unknown);
    CHECK(decoded.refusal == Refusal::none);
    CHECK(decoded.addressing.identification == addressing.identification);
    other.source.bytes[15] = 9;
    CHECK(decode_udp_payload(sent, other, Identification::unknown).refusal == Refusal::bad_icrc);
  }

  TEST_CASE("frames are these bytes") {
    std::vector<std::byte> out(max_frame_bytes);
    const auto encoded = [&](const Packet& packet, std::span<const char> text, bool ipv4) {
      return std::vector<std::byte>(
          out.begin(), out.begin() + static_cast<std::ptrdiff_t>(
                                         encode(packet, std::as_bytes(text), sample_addressing(ipv4), out)));
    };
    Packet packet = sample_packet(PacketOp::write_only_imm, 5);
    packet.pkey = default_pkey;
    packet.dma_bytes = 5;
    CHECK(encoded(packet, std::span("hello", 5), true) ==
          from_hex("020000000002020000000001080045680048123440004011140"
                   "70a0000010a000002c12312b7003400000bf0ffff"
                   "0012345680abcdef1122334455667788aabbccdd00000005deadbeef68656c6c6f000000ba9c9e3e"));

    packet = sample_packet(PacketOp::ud_send_only, 8);
    packet.pkey = default_pkey;
    packet.flags = 0;
    packet.rkey = 0x11111111;
    CHECK(encoded(packet, std::span("datagram", 8), false) ==
          from_hex(
              "02000000000202000000000186dd6680000000281140fe800000000000000000000000000001fe80000000000000"
              "0000000000000002c12312b7002800006440ffff0012345600abcdef1111111100654321646174616772616d863534"
              "38"));

    packet = sample_packet(PacketOp::cmp_swap, 0);
    packet.pkey = default_pkey;
    packet.flags = packet_ack_request;
    CHECK(encoded(packet, {}, true) ==
          from_hex(
              "02000000000202000000000108004568004812344000401114070a0000010a000002c12312b7003400001340ffff"
              "0012345680abcdef1122334455667788aabbccdd01020304050607081112131415161718ef5e0a75"));
  }

  TEST_CASE("transport headers are the bytes that a ConnectX sends for the same request and answer") {
    std::vector<std::byte> out(max_frame_bytes);
    Packet write{};
    write.op = PacketOp::write_only;
    write.flags = packet_ack_request;
    write.pkey = default_pkey;
    write.dest_qpn = 0x10a;
    write.psn = 0xa788bc;
    write.address = 0x55d4c0726000;
    write.rkey = 0x47b3;
    write.dma_bytes = 5;
    const auto payload = from_hex("0000000001");
    const auto request = from_hex("0a70ffff0000010a80a788bc000055d4c0726000000047b3000000050000000001000000");
    REQUIRE(encode_udp_payload(write, payload, sample_addressing(true), out) == request.size() + icrc_bytes);
    CHECK(std::equal(request.begin(), request.end(), out.begin()));

    Packet ack{};
    ack.op = PacketOp::acknowledge;
    ack.pkey = default_pkey;
    ack.dest_qpn = 0x109;
    ack.psn = 0xa788c0;
    ack.aeth = 5;
    const auto answer = from_hex("1140ffff0000010900a788c000000005");
    REQUIRE(encode_udp_payload(ack, {}, sample_addressing(true), out) == answer.size() + icrc_bytes);
    CHECK(std::equal(answer.begin(), answer.end(), out.begin()));
  }

  TEST_CASE("a flipped bit is refused wherever it is, but for what the way may change") {
    for (const bool ipv4 : {true, false}) {
      const std::size_t bth_at = ethernet_bytes + (ipv4 ? 28 : 48);
      std::set<std::size_t> open;  // bits; bit 0 of a byte is its least significant
      const auto open_byte = [&](std::size_t at) {
        for (std::size_t bit = 0; bit < 8; ++bit) open.insert(at * 8 + bit);
      };
      for (std::size_t mac = 0; mac < 12; ++mac) open_byte(mac);
      open_byte(bth_at + 4);
      if (!ipv4) {
        for (std::size_t bit = 0; bit < 4; ++bit) open.insert(14 * 8 + bit);
        for (const std::size_t at : {15u, 16u, 17u, 21u}) open_byte(at);
      }
      for (const PacketOp op : all_ops()) {
        auto frame = sample_frame(op, has_payload(op) ? 13 : 0, ipv4);
        for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
          CAPTURE(static_cast<int>(op));
          CAPTURE(bit);
          const std::byte flip = static_cast<std::byte>(1 << bit % 8);
          frame[bit / 8] ^= flip;
          CHECK((decode(frame).refusal == Refusal::none) == open.contains(bit));
          frame[bit / 8] ^= flip;
        }
      }
    }
  }

  TEST_CASE("a frame that was cut anywhere is refused") {
    for (const bool ipv4 : {true, false}) {
      for (const PacketOp op : all_ops()) {
        const auto frame = sample_frame(op, has_payload(op) ? 6 : 0, ipv4);
        for (std::size_t bytes = 0; bytes < frame.size(); ++bytes) {
          const std::vector<std::byte> cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(bytes));
          CHECK(decode(cut).refusal == Refusal::too_short);
        }
      }
    }
  }

  TEST_CASE("a transport part that was cut or grown is refused even when all lengths and sums agree") {
    for (const bool ipv4 : {true, false}) {
      const std::size_t bth_at = ethernet_bytes + (ipv4 ? 28 : 48);
      for (const PacketOp op : all_ops()) {
        const auto frame = sample_frame(op, 0, ipv4);
        for (std::size_t bytes = bth_at + 16; bytes < frame.size(); ++bytes) {
          std::vector<std::byte> cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(bytes));
          set_lengths(cut, ipv4);
          CHECK(decode(cut).refusal == Refusal::bad_length);
        }
        std::vector<std::byte> grown = frame;
        grown.insert(grown.end() - icrc_bytes, has_payload(op) ? max_mtu_bytes + 4 : 4, std::byte{0});
        set_lengths(grown, ipv4);
        CHECK(decode(grown).refusal == Refusal::bad_length);
      }
      std::vector<std::byte> no_bth = sample_frame(PacketOp::send_only, 0, ipv4);
      no_bth.resize(bth_at + 15);
      set_u16(no_bth, ipv4 ? 16 : 18, no_bth.size() - (ipv4 ? 14 : 54));
      if (ipv4) set_ipv4_checksum(no_bth);
      set_u16(no_bth, bth_at - 4, no_bth.size() - bth_at + 8);
      CHECK(decode(no_bth).refusal == Refusal::too_short);
    }
  }

  TEST_CASE("each reason for refusal is told by name") {
    auto frame = ipv4_frame();
    REQUIRE(decode(frame));
    const auto refusal_after = [&](auto change) {
      auto changed = frame;
      change(changed);
      return decode(changed).refusal;
    };
    CHECK(refusal_after([](auto& f) { set_u16(f, 12, 0x0806); }) == Refusal::not_roce);
    CHECK(refusal_after([](auto& f) { f[14] = std::byte{0x65}; }) == Refusal::bad_ip_version);
    CHECK(refusal_after([](auto& f) { set_u16(f, 12, 0x86dd); }) == Refusal::bad_ip_version);
    CHECK(refusal_after([](auto& f) { f[14] = std::byte{0x46}; }) == Refusal::ip_options);
    CHECK(refusal_after([](auto& f) { f[22] = std::byte{1}; }) == Refusal::bad_ip_checksum);
    CHECK(refusal_after([](auto& f) {
            f[20] = std::byte{0x20};
            set_ipv4_checksum(f);
          }) == Refusal::ip_fragment);
    CHECK(refusal_after([](auto& f) {
            f[23] = std::byte{6};
            set_ipv4_checksum(f);
          }) == Refusal::not_roce);
    CHECK(refusal_after([](auto& f) { set_u16(f, 36, 4790); }) == Refusal::not_roce);
    CHECK(refusal_after([](auto& f) { set_u16(f, 38, 51); }) == Refusal::bad_length);
    CHECK(refusal_after([](auto& f) {
            set_u16(f, 16, 19);
            set_ipv4_checksum(f);
          }) == Refusal::bad_length);
    CHECK(refusal_after([](auto& f) { set_u16(f, 40, 1); }) == Refusal::bad_udp_checksum);
    CHECK(refusal_after([](auto& f) { f.back() ^= std::byte{1}; }) == Refusal::bad_icrc);
    CHECK(refusal_after([](auto& f) {
            f[43] |= std::byte{1};
            set_icrc(f, true);
          }) == Refusal::bad_version);
    CHECK(refusal_after([](auto& f) {
            f[42] = std::byte{0x81};
            set_icrc(f, true);
          }) == Refusal::bad_opcode);
    CHECK(refusal_after([](auto& f) { f.push_back(std::byte{0}); }) == Refusal::bad_length);
    frame = sample_frame(PacketOp::send_only, 0, false);
    CHECK(refusal_after([](auto& f) {
            std::fill_n(f.begin() + 22, 10, std::byte{0});
            f[32] = f[33] = std::byte{0xff};
          }) == Refusal::mixed_addresses);

    std::set<std::string_view> names;
    for (int i = 0; i <= static_cast<int>(Refusal::mixed_addresses); ++i)
      names.insert(name(static_cast<Refusal>(i)));
    CHECK(names.size() == static_cast<std::size_t>(Refusal::mixed_addresses) + 1);
  }

  TEST_CASE("a pad count that the payload cannot have is refused") {
    auto frame = sample_frame(PacketOp::acknowledge, 0, true);
    frame[43] |= std::byte{0x10};
    set_icrc(frame, true);
    CHECK(decode(frame).refusal == Refusal::bad_length);
    frame = sample_frame(PacketOp::send_only, 0, true);
    frame[43] |= std::byte{0x30};
    set_icrc(frame, true);
    CHECK(decode(frame).refusal == Refusal::bad_length);
  }

  TEST_CASE("a right UDP checksum is as good as none") {
    for (const bool ipv4 : {true, false}) {
      auto frame = sample_frame(PacketOp::send_only, 9, ipv4);
      const std::size_t udp_at = ethernet_bytes + (ipv4 ? 20 : 40);
      const std::size_t addresses_at = ipv4 ? 26 : 22;
      const std::uint32_t udp_bytes = static_cast<std::uint32_t>(frame.size() - udp_at);
      const auto all = std::span(frame);
      const std::uint32_t sum =
          ones_sum(all.subspan(udp_at), ones_sum(all.subspan(addresses_at, ipv4 ? 8 : 32), 17 + udp_bytes));
      set_u16(frame, udp_at + 6, ~sum & 0xffff);
      CHECK(decode(frame).refusal == Refusal::none);
      frame[udp_at + 7] ^= std::byte{1};
      CHECK(decode(frame).refusal == Refusal::bad_udp_checksum);
    }
  }

  TEST_CASE("Ethernet's padding to 60 bytes is let through and not taken for payload") {
    auto frame = sample_frame(PacketOp::send_only, 0, true);
    REQUIRE(frame.size() == 58);
    frame.resize(60);
    const Decoded decoded = decode(frame);
    CHECK(decoded.refusal == Refusal::none);
    CHECK(decoded.payload.empty());
    frame.resize(61);
    CHECK(decode(frame).refusal == Refusal::bad_length);
  }

  TEST_CASE("nothing is written where it would not fit, and nothing past the frame's end") {
    for (const bool ipv4 : {true, false}) {
      const auto payload = sample_payload(6);
      const auto frame = sample_frame(PacketOp::write_only, 6, ipv4);
      for (std::size_t bytes = 0; bytes <= frame.size(); ++bytes) {
        std::vector<std::byte> out(bytes);
        CHECK(encode(sample_packet(PacketOp::write_only, 6), payload, sample_addressing(ipv4), out) ==
              (bytes == frame.size() ? bytes : 0));
      }
      const std::size_t udp_payload = frame.size() - ethernet_bytes - (ipv4 ? 28 : 48);
      for (std::size_t bytes = 0; bytes <= udp_payload; ++bytes) {
        std::vector<std::byte> out(bytes);
        CHECK(encode_udp_payload(sample_packet(PacketOp::write_only, 6), payload, sample_addressing(ipv4),
                                 out) == (bytes == udp_payload ? bytes : 0));
      }
    }
  }

  TEST_CASE("a packet that no frame can hold is not encoded") {
    std::vector<std::byte> out(2 * max_frame_bytes);
    const Addressing addressing = sample_addressing(true);
    CHECK(encode(sample_packet(PacketOp::send_only, 0), sample_payload(4097), addressing, out) == 0);
    CHECK(encode(sample_packet(PacketOp::acknowledge, 0), sample_payload(1), addressing, out) == 0);
    Addressing mixed = addressing;
    mixed.source = sample_addressing(false).source;
    CHECK(encode(sample_packet(PacketOp::send_only, 0), {}, mixed, out) == 0);
    CHECK(encode_udp_payload(sample_packet(PacketOp::send_only, 0), {}, mixed, out) == 0);
    const std::vector<std::byte> bytes(16);
    CHECK(decode_udp_payload(bytes, mixed).refusal == Refusal::mixed_addresses);
  }

  TEST_CASE("numbers wider than their field are cut, not spilt into the next") {
    std::vector<std::byte> out(max_frame_bytes);
    Packet packet = sample_packet(PacketOp::ud_send_only, 0);
    packet.flags = 0;
    packet.psn = packet.dest_qpn = packet.dma_bytes = 0xff000001;
    out.resize(encode(packet, {}, sample_addressing(true), out));
    const Decoded decoded = decode(out);
    REQUIRE(decoded);
    CHECK(decoded.packet.flags == 0);
    CHECK(decoded.packet.psn == 1);
    CHECK(decoded.packet.dest_qpn == 1);
    CHECK(decoded.packet.dma_bytes == 1);
  }

  TEST_CASE("a UD receiver's 40 bytes are the packet's own IP header, IPv4 in the last 20") {
    for (const bool ipv4 : {true, false}) {
      const std::ptrdiff_t ip_bytes = ipv4 ? 20 : 40;
      for (const PacketOp op : {PacketOp::ud_send_only, PacketOp::ud_send_only_imm}) {
        const auto frame = sample_frame(op, 10, ipv4);
        std::array<std::byte, grh_bytes> grh;
        grh.fill(std::byte{0xee});
        REQUIRE(make_grh(sample_addressing(ipv4), op, 10, grh));
        CHECK(std::equal(grh.end() - ip_bytes, grh.end(), frame.begin() + 14));
        CHECK(std::all_of(grh.begin(), grh.end() - ip_bytes, [](std::byte b) { return b == std::byte{0}; }));
      }
    }
    std::array<std::byte, grh_bytes> grh;
    Addressing mixed = sample_addressing(true);
    mixed.source = sample_addressing(false).source;
    CHECK_FALSE(make_grh(mixed, PacketOp::ud_send_only, 10, grh));
    CHECK_FALSE(make_grh(sample_addressing(true), PacketOp::ud_send_only, 4097, grh));
  }
}
