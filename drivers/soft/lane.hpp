// A lane carries packets from one engine to another: a ring of slots with one producer and one
// consumer, in memory that both see. It is the software NIC's link.
//
//   header   line 0  written by the sender: who it is
//            line 1  written by the receiver: how far it is, and what it refuses
//   slots    lane_slots × 128 bytes: a sequence word, the packet's headers, 64 bytes of payload
//   spill    lane_slots × 4096 bytes: the payloads of 65 bytes and more that are copied
//
// A slot holds a packet when its sequence is its index plus one, counted from the lane's first
// packet on. So the receiver waits on the very line that brings the headers, and nothing needs to
// be cleared. It tells how far it has come only now and then; that line is quiet otherwise.
//
// The other side may be hostile or may have crashed half-way: the receiver copies the headers out
// before it looks at them, and no length or reference in them is used unchecked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "pollen/drivers/soft/packet.hpp"

namespace pollen::soft {

inline constexpr std::uint32_t lane_slots = 256;
inline constexpr std::uint32_t slot_payload_bytes = 64;

struct alignas(64) Slot {
  std::atomic<std::uint32_t> sequence;
  std::uint32_t reserved;
  Packet packet;
  std::byte payload[slot_payload_bytes];
};
static_assert(sizeof(Slot) == 128 && offsetof(Slot, payload) == 64);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

struct LaneHeader {
  alignas(64) std::atomic<std::uint32_t> state;  // LaneState
  std::uint32_t sender_pid;
  std::uint64_t sender_start_time;
  std::uint32_t sender_engine;  // device << 16 | engine slot
  alignas(64) std::atomic<std::uint32_t> consumed;
  std::atomic<std::uint32_t> references_refused;  // the receiver can't map the sender's memory
};

enum LaneState : std::uint32_t { lane_free = 0, lane_claimed = 1, lane_open = 2, lane_closed = 3 };

struct alignas(4096) Lane {
  LaneHeader header;
  alignas(4096) Slot slots[lane_slots];
  std::byte spill[lane_slots][max_mtu_bytes];
};

// The sender's end. One thread.
class TxLane {
 public:
  explicit TxLane(Lane& lane) noexcept : lane_(&lane) {}

  bool has_room() noexcept {
    if (head_ - consumed_ < lane_slots) return true;
    consumed_ = lane_->header.consumed.load(std::memory_order_acquire);
    return head_ - consumed_ < lane_slots;
  }
  std::uint32_t room() noexcept {
    consumed_ = lane_->header.consumed.load(std::memory_order_acquire);
    const std::uint32_t used = head_ - consumed_;
    return used < lane_slots ? lane_slots - used : 0;
  }
  // The slot that the next packet goes to; needs has_room(). Nothing is sent before commit().
  Slot& slot() const noexcept { return lane_->slots[head_ % lane_slots]; }
  std::byte* spill() const noexcept { return lane_->spill[head_ % lane_slots]; }
  std::byte* payload(std::uint32_t bytes) const noexcept {
    return bytes <= slot_payload_bytes ? slot().payload : spill();
  }
  void commit() noexcept {
    Slot& ready = slot();
    ++head_;
    ready.sequence.store(head_, std::memory_order_release);
  }
  bool references_refused() const noexcept {
    return lane_->header.references_refused.load(std::memory_order_relaxed) != 0;
  }

 private:
  Lane* lane_;
  std::uint32_t head_ = 0;
  std::uint32_t consumed_ = 0;
};

// The receiver's end. One thread.
class RxLane {
 public:
  explicit RxLane(Lane& lane) noexcept : lane_(&lane) {}

  // The packet at the head, or null. It stays where it is until advance().
  const Slot* peek() const noexcept {
    const Slot& slot = lane_->slots[tail_ % lane_slots];
    return slot.sequence.load(std::memory_order_acquire) == tail_ + 1 ? &slot : nullptr;
  }
  const std::byte* payload(const Slot& slot, std::uint32_t bytes) const noexcept {
    return bytes <= slot_payload_bytes ? slot.payload : lane_->spill[tail_ % lane_slots];
  }
  void advance() noexcept { ++tail_; }
  // Gives the slots back. Often enough that the sender is never held up by a lazy receiver.
  void publish() noexcept {
    if (tail_ == published_) return;
    published_ = tail_;
    lane_->header.consumed.store(tail_, std::memory_order_release);
  }
  bool due() const noexcept { return tail_ - published_ >= lane_slots / 8; }
  void refuse_references() noexcept { lane_->header.references_refused.store(1, std::memory_order_relaxed); }

 private:
  Lane* lane_;
  std::uint32_t tail_ = 0;
  std::uint32_t published_ = 0;
};

}  // namespace pollen::soft
