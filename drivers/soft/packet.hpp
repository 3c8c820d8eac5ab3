// One RoCEv2 packet as the software NIC's transport sees it: the headers' fields in host order,
// and where its payload is. drivers/soft/roce.hpp turns it into the bytes of a frame and back.
//
// It is the head of a slot in a lane (lane.hpp) that two processes share, so it has a fixed
// layout, and whoever reads one from a lane copies it first and then trusts nothing in it.
#pragma once

#include <cstdint>
#include <type_traits>

namespace pollen::soft {

// BTH opcodes: transport in the top three bits (RC 0, UC 1, UD 3), operation below. UC has RC's sends
// and writes: see unreliable().
enum class PacketOp : std::uint8_t {
  send_first = 0x00,
  send_middle = 0x01,
  send_last = 0x02,
  send_last_imm = 0x03,
  send_only = 0x04,
  send_only_imm = 0x05,
  write_first = 0x06,
  write_middle = 0x07,
  write_last = 0x08,
  write_last_imm = 0x09,
  write_only = 0x0a,
  write_only_imm = 0x0b,
  read_request = 0x0c,
  read_response_first = 0x0d,
  read_response_middle = 0x0e,
  read_response_last = 0x0f,
  read_response_only = 0x10,
  acknowledge = 0x11,
  atomic_acknowledge = 0x12,
  cmp_swap = 0x13,
  fetch_add = 0x14,
  send_last_inv = 0x16,
  send_only_inv = 0x17,
  ud_send_only = 0x64,
  ud_send_only_imm = 0x65,
};

inline constexpr std::uint8_t uc_bit = 0x20;
constexpr bool is_unreliable(PacketOp op) noexcept {
  return static_cast<std::uint8_t>(op) >= uc_bit &&
         static_cast<std::uint8_t>(op) <= (uc_bit | static_cast<std::uint8_t>(PacketOp::write_only_imm));
}
// RC's send or write as UC has it, and back.
constexpr PacketOp unreliable(PacketOp op) noexcept {
  return static_cast<PacketOp>(static_cast<std::uint8_t>(op) | uc_bit);
}
constexpr PacketOp reliable_twin(PacketOp op) noexcept {
  return is_unreliable(op) ? static_cast<PacketOp>(static_cast<std::uint8_t>(op) ^ uc_bit) : op;
}

enum PacketFlags : std::uint8_t {
  packet_ack_request = 1,   // BTH.A
  packet_solicited = 2,     // BTH.SE
  packet_by_reference = 4,  // the payload is in the sender's memory: see Packet::reference
};

// Where a payload lies that was not copied into the packet. Only between engines that can both
// see the memory; never in a frame.
struct PayloadReference {
  std::uint32_t backing;  // fd number of the sender's memory file; own_address_space: see there
  std::uint32_t inode;    // its low bits: an fd number can come to mean another file
  std::uint64_t offset;   // in that file
};
inline constexpr std::uint32_t own_address_space = 0xffffffff;  // `offset` is a plain address

// A payload that is passed by reference may stand for a run of packets with consecutive PSNs, all
// but the last of the full MTU, as a NIC's segmentation offload has it: payload_bytes is that of the
// last. On a wire that carries frames there are no references, and so no runs.
inline constexpr std::uint32_t max_run_bytes = 64 << 10;

struct AtomicOperands {
  std::uint64_t swap_add;
  std::uint64_t compare;
};

struct Packet {
  PacketOp op;
  std::uint8_t flags;
  std::uint16_t payload_bytes;
  std::uint32_t dest_qpn;
  std::uint32_t psn;
  std::uint32_t imm;        // ImmDt, or the rkey of IETH
  std::uint32_t aeth;       // syndrome << 24 | msn
  std::uint32_t rkey;       // RETH, AtomicETH; DETH: the queue key
  std::uint64_t address;    // RETH, AtomicETH
  std::uint32_t dma_bytes;  // RETH; DETH: the source QP
  std::uint16_t pkey;
  std::uint8_t gid_index;  // of the sender's source address
  std::uint8_t run;        // by reference only: so many packets in one; 0 and 1: one
  union {
    PayloadReference reference;
    AtomicOperands atomic;          // AtomicETH
    std::uint64_t atomic_original;  // AtomicAckETH
  };
};
constexpr std::uint32_t psns_of(const Packet& packet) noexcept { return packet.run > 1 ? packet.run : 1; }

static_assert(sizeof(Packet) == 56 && std::is_trivially_copyable_v<Packet>);

inline constexpr std::uint32_t psn_mask = 0xffffff;
inline constexpr std::uint16_t default_pkey = 0xffff;
inline constexpr std::uint32_t max_mtu_bytes = 4096;

// Signed distance on the 24-bit circle: positive when `a` is after `b`.
constexpr std::int32_t psn_distance(std::uint32_t a, std::uint32_t b) noexcept {
  return static_cast<std::int32_t>((a - b) << 8) >> 8;
}

// AETH syndromes.
inline constexpr std::uint8_t aeth_ack = 0x1f;  // no credit count
inline constexpr std::uint8_t aeth_rnr = 0x20;  // | the timer's code
inline constexpr std::uint8_t aeth_nak_sequence = 0x60;
inline constexpr std::uint8_t aeth_nak_invalid_request = 0x61;
inline constexpr std::uint8_t aeth_nak_remote_access = 0x62;
inline constexpr std::uint8_t aeth_nak_remote_operation = 0x63;

}  // namespace pollen::soft
