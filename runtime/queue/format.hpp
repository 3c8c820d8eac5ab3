// The descriptor format that all drivers share: mlx5's send queue, receive queue and
// completion queue, byte for byte. The structures are those of <infiniband/mlx5dv.h>.
//
// A send WQE is a run of 16-byte segments in 64-byte basic blocks (WQEBB). All fields are
// big-endian.
//
//   ctrl    0  opmod:8  producer index:16  opcode:8     index of the WQE's first block
//           4  qpn:24  ds:8                              ds = WQE size in 16-byte units
//           8  signature:8  reserved:16  fence/CE/SE:8   fence bits 7:5, CE bits 3:2, SE bit 1
//          12  immediate, or the rkey to invalidate
//   av     48 bytes, UD only: qkey, destination QP, path (see mlx5_wqe_av)
//   raddr   0  remote address:64      8  rkey:32   12  0     WRITE, READ, atomics
//   atomic  0  swap or add:64         8  compare:64
//   data    0  byte count:32          4  lkey:32    8  address:64
//   inline  0  byte count | 1<<31:32  4  the bytes, padded to 16
//
//   SEND   ctrl data…            WRITE  ctrl raddr data…     UD     ctrl av data…
//   SEND   ctrl inline           WRITE  ctrl raddr inline    ATOMIC ctrl raddr atomic data
//   NOP    ctrl                  READ   ctrl raddr data…
//
// One block holds ctrl + raddr + two data segments. Only inline bytes and long gather lists
// can run across the end of the ring.
//
// A receive WQE is `stride` bytes of data segments; a list that is shorter is ended by a
// segment with the invalid lkey.
#pragma once

#include <infiniband/mlx5dv.h>

#include <cstddef>
#include <cstdint>

namespace pollen::queue {

using CtrlSegment = mlx5_wqe_ctrl_seg;
using RemoteSegment = mlx5_wqe_raddr_seg;
using AtomicSegment = mlx5_wqe_atomic_seg;
using DataSegment = mlx5_wqe_data_seg;
using DatagramSegment = mlx5_wqe_datagram_seg;
using AddressVector = mlx5_wqe_av;
using Cqe = mlx5_cqe64;
using ErrorCqe = mlx5_err_cqe;

inline constexpr std::uint32_t block_bytes = 64;
inline constexpr std::uint32_t segment_bytes = 16;
inline constexpr std::uint32_t segments_per_block = block_bytes / segment_bytes;
inline constexpr std::uint32_t cqe_bytes = 64;
inline constexpr std::uint32_t max_segments = 63;        // ds has six bits
inline constexpr std::uint32_t max_send_blocks = 32768;  // the producer index has 16 bits
inline constexpr std::uint32_t inline_flag = MLX5_INLINE_SEG;
inline constexpr std::uint32_t invalid_lkey = MLX5_INVALID_LKEY;

// The last byte of the ctrl segment's third word.
inline constexpr std::uint8_t ctrl_signal = MLX5_WQE_CTRL_CQ_UPDATE;
inline constexpr std::uint8_t ctrl_solicited = MLX5_WQE_CTRL_SOLICITED;
inline constexpr std::uint8_t ctrl_fence = MLX5_WQE_CTRL_FENCE;

// The top byte of a CQE: opcode:4 format:2 SE:1 owner:1.
inline constexpr std::uint8_t cqe_owner = MLX5_CQE_OWNER_MASK;
inline constexpr std::uint8_t cqe_opcode_and_owner = 0xf1;
inline constexpr std::uint8_t cqe_never_written = MLX5_CQE_INVALID << 4;

static_assert(sizeof(CtrlSegment) == segment_bytes);
static_assert(sizeof(RemoteSegment) == segment_bytes);
static_assert(sizeof(AtomicSegment) == segment_bytes);
static_assert(sizeof(DataSegment) == segment_bytes);
static_assert(sizeof(DatagramSegment) == 3 * segment_bytes);
static_assert(sizeof(Cqe) == cqe_bytes && sizeof(ErrorCqe) == cqe_bytes);
static_assert(offsetof(Cqe, op_own) == cqe_bytes - 1 && offsetof(ErrorCqe, op_own) == cqe_bytes - 1);
static_assert(offsetof(Cqe, sop_drop_qpn) == offsetof(ErrorCqe, s_wqe_opcode_qpn));

constexpr std::uint32_t blocks_of_segments(std::uint32_t segments) noexcept {
  return (segments + segments_per_block - 1) / segments_per_block;
}

// Segments that an inline segment of `bytes` takes, its 4-byte header included.
constexpr std::uint32_t inline_segments(std::uint32_t bytes) noexcept {
  return (bytes + 4 + segment_bytes - 1) / segment_bytes;
}

}  // namespace pollen::queue
