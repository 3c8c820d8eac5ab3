// The two WQE shapes that can run across the end of the ring: inline bytes and gather lists.
// Included by send_burst.hpp.
#pragma once

#include "pollen/queue/send_burst.hpp"

namespace pollen::queue {

namespace detail {

using Chunk16 = std::uint64_t __attribute__((vector_size(16)));
using Chunk32 = std::uint64_t __attribute__((vector_size(32)));

// At any address, and whatever else is there: attributes of a type would be lost on a template's way.
template <typename Chunk>
struct [[gnu::packed, gnu::may_alias]] Anywhere {
  Chunk value;
};

template <typename Chunk>
void copy_ends(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const Chunk first = reinterpret_cast<const Anywhere<Chunk>*>(from)->value;
  const Chunk last = reinterpret_cast<const Anywhere<Chunk>*>(from + bytes - sizeof(Chunk))->value;
  reinterpret_cast<Anywhere<Chunk>*>(to)->value = first;
  reinterpret_cast<Anywhere<Chunk>*>(to + bytes - sizeof(Chunk))->value = last;
}

// Exact on both sides. Two chunks that may overlap cover every size between the one and the
// double of theirs, without a loop or a branch per byte.
inline void copy_to_64(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes > 32) [[likely]]
    return copy_ends<Chunk32>(to, from, bytes);
  if (bytes >= 16) return copy_ends<Chunk16>(to, from, bytes);
  if (bytes >= 8) return copy_ends<std::uint64_t>(to, from, bytes);
  if (bytes >= 4) return copy_ends<std::uint32_t>(to, from, bytes);
  for (std::size_t i = 0; i < bytes; ++i) to[i] = from[i];
}

// An inline segment of any length, and across the end of the ring. Out of line, and given values
// only, so that the common case keeps the burst in registers.
void put_inline_around(std::byte* ring, std::byte* ring_end, std::byte* to, const std::byte* from,
                       std::uint32_t bytes) noexcept;

}  // namespace detail

template <std::uint32_t head_segments, std::size_t extent>
inline bool SendBurst::put_inline(std::uint32_t opcode, std::uint32_t imm_be, const void* head,
                                  std::span<const std::byte, extent> data,
                                  const WrOptions& options) noexcept {
  constexpr std::uint32_t head_bytes = (1 + head_segments) * segment_bytes;
  constexpr std::uint32_t short_bytes = 64;
  const auto bytes = static_cast<std::uint32_t>(data.size());
  assert(bytes <= sq_.ring_.max_inline_bytes);
  if (bytes == 0) [[unlikely]]
    return put_empty<head_segments>(opcode, imm_be, head, options);
  const std::uint32_t segments = 1 + head_segments + inline_segments(bytes);
  const std::uint32_t blocks = blocks_of_segments(segments);
  constexpr std::uint32_t short_blocks = (head_bytes + 4 + short_bytes + block_bytes - 1) / block_bytes;
  if (!reserve(blocks)) return false;
  std::byte* wqe = next();
  put_ctrl(wqe, opcode, segments, imm_be, options);
  put_head<head_segments>(wqe, head);
  if (bytes <= short_bytes && place() + short_blocks * sizeof(std::uint64_t) - 1 <= mask_) [[likely]] {
    store_be(wqe + head_bytes, bytes | inline_flag);
    detail::copy_to_64(wqe + head_bytes + 4, data.data(), bytes);
  } else {
    detail::put_inline_around(wqes_, ring_end(), wqe + head_bytes, data.data(), bytes);
  }
  return commit(wqe, blocks, bytes, options);
}

template <std::uint32_t head_segments>
inline bool SendBurst::put_gather(std::uint32_t opcode, std::uint32_t imm_be, const void* head,
                                  std::span<const Sge> local, const WrOptions& options) noexcept {
  assert(local.size() <= sq_.ring_.max_sge);
  std::uint32_t segments = 1 + head_segments;
  for (const Sge& sge : local) segments += sge.bytes != 0;
  const std::uint32_t blocks = blocks_of_segments(segments);
  if (!reserve(blocks)) return false;
  std::byte* wqe = next();
  put_ctrl(wqe, opcode, segments, imm_be, options);
  put_head<head_segments>(wqe, head);
  std::byte* to = wqe + (1 + head_segments) * segment_bytes;
  std::uint32_t bytes = 0;
  for (const Sge& sge : local) {
    if (sge.bytes == 0) continue;
    if (to == ring_end()) to = wqes_;
    put_data(to, sge);
    to += segment_bytes;
    bytes += sge.bytes;
  }
  return commit(wqe, blocks, bytes, options);
}

}  // namespace pollen::queue
