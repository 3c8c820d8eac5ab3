#include "pollen/memory/pool.hpp"

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <limits>

#include "pollen/base/error.hpp"

namespace pollen::memory {

namespace {

std::size_t stride_bytes(std::size_t buffer_bytes, std::size_t align_bytes) {
  const auto refuse = [&](std::string why) {
    throw Error(EINVAL, {.attempted = fmt::format("make a pool of {}-byte buffers aligned to {}",
                                                  buffer_bytes, align_bytes),
                         .why = std::move(why)});
  };
  if (buffer_bytes == 0) refuse("a buffer needs at least one byte");
  if (!std::has_single_bit(align_bytes)) refuse("an alignment is a power of two");
  if (buffer_bytes > std::numeric_limits<std::size_t>::max() - align_bytes) refuse("the size overflows");
  return (buffer_bytes + align_bytes - 1) & ~(align_bytes - 1);
}

std::span<std::byte> carve(Arena& arena, std::size_t buffer_bytes, std::size_t count,
                           std::size_t align_bytes) {
  const std::size_t stride = stride_bytes(buffer_bytes, align_bytes);
  if (count > std::numeric_limits<std::size_t>::max() / stride) {
    throw Error(EINVAL,
                {.attempted = fmt::format("make a pool of {} buffers of {} bytes", count, buffer_bytes),
                 .why = "the size overflows"});
  }
  return arena.allocate(count * stride, align_bytes);
}

}  // namespace

BufferPool::BufferPool(Arena& arena, std::size_t buffer_bytes, std::size_t count, std::size_t align_bytes)
    : BufferPool(carve(arena, buffer_bytes, count, align_bytes), buffer_bytes, align_bytes) {}

BufferPool::BufferPool(std::span<std::byte> memory, std::size_t buffer_bytes, std::size_t align_bytes)
    : base_(memory.data()),
      stride_bytes_(memory::stride_bytes(buffer_bytes, align_bytes)),
      buffer_bytes_(buffer_bytes),
      count_(memory.size() / stride_bytes_),
      free_(count_) {
  const auto refuse = [&](std::string why) {
    throw Error(EINVAL, {.attempted = fmt::format("make a pool of {}-byte buffers in {}", buffer_bytes,
                                                  size_text(memory.size())),
                         .why = std::move(why)});
  };
  if (count_ == 0) refuse("not one buffer fits");
  if (count_ > std::numeric_limits<std::uint32_t>::max()) refuse("a pool numbers its buffers with 32 bits");
  if (std::bit_cast<std::uintptr_t>(base_) % align_bytes != 0) {
    refuse(fmt::format("the memory is not aligned to {} bytes", align_bytes));
  }
  stack_ = std::make_unique<std::byte*[]>(count_);
  is_free_.assign(count_, 1);
  // The first buffer lies on top: a pool that is hardly used touches few pages.
  for (std::size_t i = 0; i < count_; ++i) stack_[i] = base_ + (count_ - 1 - i) * stride_bytes_;
}

}  // namespace pollen::memory
