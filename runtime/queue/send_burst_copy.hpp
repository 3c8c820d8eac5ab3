// The two WQE shapes that can run across the end of the ring: inline bytes and gather lists.
// Included by send_burst.hpp.
#pragma once

#include "pollen/queue/send_burst.hpp"

namespace pollen::queue {

namespace detail {

using Chunk16 = std::uint64_t __attribute__((vector_size(16)));
using Chunk32 = std::uint64_t __attribute__((vector_size(32)));

template <typename Chunk>
void copy_ends(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  Chunk first;
  Chunk last;
  std::memcpy(&first, from, sizeof first);
  std::memcpy(&last, from + bytes - sizeof last, sizeof last);
  std::memcpy(to, &first, sizeof first);
  std::memcpy(to + bytes - sizeof last, &last, sizeof last);
}

// Exact on both sides. Two chunks that may overlap cover every size between the one and the
// double of theirs, without a loop or a branch per byte.
inline void copy_to_64(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes > 32) return copy_ends<Chunk32>(to, from, bytes);
  if (bytes >= 16) return copy_ends<Chunk16>(to, from, bytes);
  if (bytes >= 8) return copy_ends<std::uint64_t>(to, from, bytes);
  if (bytes >= 4) return copy_ends<std::uint32_t>(to, from, bytes);
  for (std::size_t i = 0; i < bytes; ++i) to[i] = from[i];
}

// Any length, and across the end of the ring. Out of line, and given values only, so that the
// common case keeps the burst in registers.
void copy_around(std::byte* ring, std::byte* ring_end, std::byte* to, const std::byte* from,
                 std::size_t bytes) noexcept;

}  // namespace detail

// head_segments: what stands between ctrl and the data: 0 nothing, 1 a Remote, 3 an Address.
// None of them crosses a block together with the ring's end: ctrl and head fit one block.
template <std::uint32_t head_segments>
bool SendBurst::put_inline(std::uint32_t opcode, std::uint32_t imm_be, const void* head,
                           std::span<const std::byte> data, const WrOptions& options) noexcept {
  constexpr std::uint32_t head_bytes = (1 + head_segments) * segment_bytes;
  const auto bytes = static_cast<std::uint32_t>(data.size());
  assert(bytes <= sq_.ring_.max_inline_bytes);
  if (bytes == 0) [[unlikely]] return put_gather(opcode, imm_be, head, head_segments, {}, options);
  const std::uint32_t segments = 1 + head_segments + inline_segments(bytes);
  const std::uint32_t blocks = blocks_of_segments(segments);
  if (!reserve(blocks)) return false;
  std::byte* wqe = next();
  put_ctrl(wqe, opcode, segments, imm_be, options);
  if constexpr (head_segments == 1) put_remote_segment(wqe + 16, *static_cast<const Remote*>(head));
  if constexpr (head_segments == 3)
    std::memcpy(wqe + 16, &static_cast<const Address*>(head)->segment, sizeof(DatagramSegment));
  std::byte* to = wqe + head_bytes;
  if constexpr (head_bytes % block_bytes == 0)
    if (to == ring_end()) to = wqes_;
  store_be(to, bytes | inline_flag);
  to += 4;
  if (bytes <= 64 && to + bytes <= ring_end()) [[likely]]
    detail::copy_to_64(to, data.data(), bytes);
  else
    detail::copy_around(wqes_, ring_end(), to, data.data(), bytes);
  return commit(wqe, blocks, bytes, options);
}

inline bool SendBurst::put_gather(std::uint32_t opcode, std::uint32_t imm_be, const void* head,
                                  std::uint32_t head_segments, std::span<const Sge> local,
                                  const WrOptions& options) noexcept {
  assert(local.size() <= sq_.ring_.max_sge);
  std::uint32_t segments = 1 + head_segments;
  for (const Sge& sge : local) segments += sge.bytes != 0;
  const std::uint32_t blocks = blocks_of_segments(segments);
  if (!reserve(blocks)) return false;
  std::byte* wqe = next();
  put_ctrl(wqe, opcode, segments, imm_be, options);
  if (head_segments == 1) put_remote_segment(wqe + 16, *static_cast<const Remote*>(head));
  if (head_segments == 3)
    std::memcpy(wqe + 16, &static_cast<const Address*>(head)->segment, sizeof(DatagramSegment));
  std::byte* const end = ring_end();
  std::byte* to = wqe + (1 + head_segments) * segment_bytes;
  std::uint32_t bytes = 0;
  for (const Sge& sge : local) {
    if (sge.bytes == 0) continue;
    if (to == end) to = wqes_;
    put_data(to, sge);
    to += segment_bytes;
    bytes += sge.bytes;
  }
  return commit(wqe, blocks, bytes, options);
}

}  // namespace pollen::queue
