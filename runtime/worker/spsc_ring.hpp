// A bounded queue from one thread to one other, without locks.
//
// Each side writes one index, on cache lines of its own, and keeps a copy of the other side's, so
// that the line of that is read only when the copy says full or empty.
//
// Thread rules: push() by one thread, pop() and empty() by one other. Errors: none; a full or empty
// ring is a return value.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

namespace pollen::worker {

template <class T>
class SpscRing {
 public:
  // Rounded up to a power of two; at least 1.
  explicit SpscRing(std::size_t capacity)
      : mask_(std::bit_ceil(capacity == 0 ? std::size_t{1} : capacity) - 1),
        items_(std::make_unique<T[]>(mask_ + 1)) {}
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  std::size_t capacity() const noexcept { return mask_ + 1; }

  // False: full; the item is untouched.
  bool push(T&& item) noexcept {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - known_head_ > mask_) {
      known_head_ = head_.load(std::memory_order_acquire);
      if (tail - known_head_ > mask_) return false;
    }
    items_[tail & mask_] = std::move(item);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  bool empty() noexcept {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == known_tail_) known_tail_ = tail_.load(std::memory_order_acquire);
    return head == known_tail_;
  }

  // False: empty; `out` is untouched.
  bool pop(T& out) noexcept {
    if (empty()) return false;
    const std::size_t head = head_.load(std::memory_order_relaxed);
    out = std::move(items_[head & mask_]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

 private:
  // CPUs fetch lines in pairs.
  static constexpr std::size_t apart_bytes = 128;

  const std::size_t mask_;
  const std::unique_ptr<T[]> items_;
  alignas(apart_bytes) std::atomic<std::size_t> tail_{0};
  std::size_t known_head_ = 0;
  alignas(apart_bytes) std::atomic<std::size_t> head_{0};
  std::size_t known_tail_ = 0;
};

}  // namespace pollen::worker
