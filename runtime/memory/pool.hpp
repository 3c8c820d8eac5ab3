// Buffers of one size, carved out of an arena: take() and put() in O(1), the last one put is
// the first one taken, since it is still in the cache. The free list stands outside of the
// buffers, so that a peer that writes into a buffer can't damage it.
//
// Units: bytes. Ownership: the pool owns its free list, the arena (or the caller) the memory.
// Thread rules: owner thread only.
// Errors: the constructors throw pollen::Error. take() returns nullptr when the pool is empty.
// A put() of a foreign or already free buffer is a bug in the caller: an assert unless NDEBUG.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pollen/memory/arena.hpp"

namespace pollen::memory {

class BufferPool {
 public:
  BufferPool(Arena& arena, std::size_t buffer_bytes, std::size_t count,
             std::size_t align_bytes = cache_line_bytes);

  // As many buffers as fit into the span; it must be aligned to align_bytes and outlive the pool.
  BufferPool(std::span<std::byte> memory, std::size_t buffer_bytes,
             std::size_t align_bytes = cache_line_bytes);

  std::byte* take() noexcept {
    if (free_ == 0) return nullptr;
    std::byte* buffer = stack_[--free_];
#ifndef NDEBUG
    is_free_[index_of(buffer)] = 0;
#endif
    return buffer;
  }

  void put(std::byte* buffer) noexcept {
    assert(owns(buffer) && "put() of a buffer that is not this pool's");
#ifndef NDEBUG
    std::uint8_t& is_free = is_free_[index_of(buffer)];
    assert(is_free == 0 && "put() of a buffer that is already free");
    is_free = 1;
#endif
    stack_[free_++] = buffer;
  }

  // True for the first byte of one of this pool's buffers, taken or not.
  bool owns(const std::byte* buffer) const noexcept {
    if (buffer < base_ || buffer >= base_ + count_ * stride_bytes_) return false;
    return static_cast<std::size_t>(buffer - base_) % stride_bytes_ == 0;
  }

  // A buffer's number, for wr_ids; at() is its inverse.
  std::uint32_t index_of(const std::byte* buffer) const noexcept {
    return static_cast<std::uint32_t>(static_cast<std::size_t>(buffer - base_) / stride_bytes_);
  }
  std::byte* at(std::uint32_t index) const noexcept {
    assert(index < count_);
    return base_ + index * stride_bytes_;
  }

  std::size_t buffer_bytes() const noexcept { return buffer_bytes_; }
  std::size_t count() const noexcept { return count_; }
  std::size_t free_count() const noexcept { return free_; }
  std::span<std::byte> memory() const noexcept { return {base_, count_ * stride_bytes_}; }

 private:
  std::byte* base_ = nullptr;
  std::size_t stride_bytes_ = 0;
  std::size_t buffer_bytes_ = 0;
  std::size_t count_ = 0;
  std::size_t free_ = 0;
  std::unique_ptr<std::byte*[]> stack_;
  std::vector<std::uint8_t> is_free_;  // kept in every build, so that the layout is the same
};

}  // namespace pollen::memory
