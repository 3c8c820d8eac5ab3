// Packets of every opcode, for the tests of the codec, the capture and the fuzzer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "pollen/drivers/soft/roce.hpp"
#include "pollen/drivers/soft/roce_opcode.hpp"

namespace pollen::soft::test {

inline std::vector<PacketOp> all_ops() {
  std::vector<PacketOp> ops;
  for (int op = 0; op < 256; ++op)
    if (packet_parts(static_cast<PacketOp>(op)) != 0) ops.push_back(static_cast<PacketOp>(op));
  return ops;
}

inline bool has_payload(PacketOp op) { return (packet_parts(op) & part_payload) != 0; }

// Every field that the opcode's headers hold has a value of its own; the others are 0.
inline Packet sample_packet(PacketOp op, std::size_t payload_bytes) {
  const std::uint16_t parts = packet_parts(op);
  Packet packet{};
  packet.op = op;
  packet.flags = packet_ack_request | packet_solicited;
  packet.payload_bytes = static_cast<std::uint16_t>(payload_bytes);
  packet.dest_qpn = 0x123456;
  packet.psn = 0xabcdef;
  packet.pkey = 0x8001;
  if (parts & (part_imm | part_ieth)) packet.imm = 0xdeadbeef;
  if (parts & part_aeth) packet.aeth = 0x1f654321;
  if (parts & (part_reth | part_atomic)) packet.address = 0x1122334455667788;
  if (parts & (part_reth | part_atomic | part_deth)) packet.rkey = 0xaabbccdd;
  if (parts & part_reth) packet.dma_bytes = 0x80000001;
  if (parts & part_deth) packet.dma_bytes = 0x654321;
  if (parts & part_atomic) packet.atomic = {.swap_add = 0x0102030405060708, .compare = 0x1112131415161718};
  if (parts & part_atomic_ack) packet.atomic_original = 0x2122232425262728;
  return packet;
}

inline std::vector<std::byte> sample_payload(std::size_t bytes) {
  std::vector<std::byte> payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i * 7 + 1);
  return payload;
}

inline Addressing sample_addressing(bool ipv4) {
  Addressing addressing;
  if (ipv4) {
    addressing.source.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
    addressing.destination.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2};
    addressing.identification = 0x1234;
  } else {
    addressing.source.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    addressing.destination.bytes = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  }
  addressing.source_mac = {2, 0, 0, 0, 0, 1};
  addressing.destination_mac = {2, 0, 0, 0, 0, 2};
  addressing.udp_source_port = 0xc123;
  addressing.hop_limit = 64;
  addressing.traffic_class = 0x68;
  return addressing;
}

inline std::vector<std::byte> sample_frame(PacketOp op, std::size_t payload_bytes, bool ipv4) {
  std::vector<std::byte> frame(max_frame_bytes);
  frame.resize(encode(sample_packet(op, payload_bytes), sample_payload(payload_bytes),
                      sample_addressing(ipv4), frame));
  return frame;
}

inline bool same(const Packet& a, const Packet& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

inline std::vector<std::byte> from_hex(const char* text) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::vector<std::byte> bytes;
  for (const char* c = text; *c != 0; ++c) {
    if (*c == ' ') continue;
    bytes.push_back(static_cast<std::byte>(digit(c[0]) << 4 | digit(c[1])));
    ++c;
  }
  return bytes;
}

}  // namespace pollen::soft::test
