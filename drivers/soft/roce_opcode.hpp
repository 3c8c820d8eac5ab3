// Which headers follow the BTH, for each opcode the software NIC speaks. On the wire they come in
// the order of the bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pollen/drivers/soft/packet.hpp"

namespace pollen::soft {

inline constexpr std::size_t bth_bytes = 12;

enum PacketPart : std::uint16_t {
  part_deth = 1,
  part_reth = 2,
  part_atomic = 4,
  part_aeth = 8,
  part_atomic_ack = 16,
  part_imm = 32,
  part_ieth = 64,
  part_payload = 128,  // may be empty
};

// 0: no opcode of ours, or one of UC, which crosses lanes but is not framed: no wire carries it yet.
constexpr std::uint16_t packet_parts(PacketOp op) noexcept {
  switch (op) {
    case PacketOp::send_first:
    case PacketOp::send_middle:
    case PacketOp::send_last:
    case PacketOp::send_only:
    case PacketOp::write_middle:
    case PacketOp::write_last:
    case PacketOp::read_response_middle:
      return part_payload;
    case PacketOp::send_last_imm:
    case PacketOp::send_only_imm:
    case PacketOp::write_last_imm:
      return part_imm | part_payload;
    case PacketOp::send_last_inv:
    case PacketOp::send_only_inv:
      return part_ieth | part_payload;
    case PacketOp::write_first:
    case PacketOp::write_only:
      return part_reth | part_payload;
    case PacketOp::write_only_imm:
      return part_reth | part_imm | part_payload;
    case PacketOp::read_request:
      return part_reth;
    case PacketOp::read_response_first:
    case PacketOp::read_response_last:
    case PacketOp::read_response_only:
      return part_aeth | part_payload;
    case PacketOp::acknowledge:
      return part_aeth;
    case PacketOp::atomic_acknowledge:
      return part_aeth | part_atomic_ack;
    case PacketOp::cmp_swap:
    case PacketOp::fetch_add:
      return part_atomic;
    case PacketOp::ud_send_only:
      return part_deth | part_payload;
    case PacketOp::ud_send_only_imm:
      return part_deth | part_imm | part_payload;
  }
  return 0;
}

// Bytes between the BTH and the payload.
constexpr std::uint32_t extension_bytes(std::uint16_t parts) noexcept {
  return (parts & part_deth ? 8u : 0u) + (parts & part_reth ? 16u : 0u) + (parts & part_atomic ? 28u : 0u) +
         (parts & part_aeth ? 4u : 0u) + (parts & part_atomic_ack ? 8u : 0u) + (parts & part_imm ? 4u : 0u) +
         (parts & part_ieth ? 4u : 0u);
}

}  // namespace pollen::soft
