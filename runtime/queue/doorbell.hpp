// How a driver is told that WQEs are ready: the one place where drivers differ on the data
// path, and only once per burst.
//
//   mlx5   the UAR: a page of the NIC's registers, mapped write-combining, that one worker owns.
//          It holds two halves used in turn; the device takes either the 8 bytes of the last
//          ctrl segment, or (BlueFlame) a whole short WQE, which saves it a DMA read.
//   others a hook: a function of the driver, called with the last ctrl segment.
//
// Both write the doorbell record first, as the format demands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pollen/base/bytes.hpp"
#include "pollen/queue/barrier.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::queue {

// The registers belong to a worker, not to a QP: so does the choice of the half.
struct Uar {
  std::byte* registers = nullptr;
  std::uint32_t half_bytes = 0;  // 0: 8-byte doorbells only, no BlueFlame
  std::uint32_t offset = 0;      // of the half to use next
};

struct DoorbellHook {
  using Function = void (*)(void* context, const CtrlSegment* last) noexcept;
  Function function = nullptr;  // null: the UAR is used
  void* context = nullptr;
};

inline void store_u32(std::byte* at, std::uint32_t value) noexcept { std::memcpy(at, &value, sizeof value); }
inline void store_u64(std::byte* at, std::uint64_t value) noexcept { std::memcpy(at, &value, sizeof value); }

// Host order in, network order in memory: one instruction (movbe) where the machine has it.
template <typename T>
void store_be(std::byte* at, T value) noexcept {
  value = big_endian(value);
  std::memcpy(at, &value, sizeof value);
}

inline void store_register(std::byte* at, std::uint64_t value) noexcept {
  *reinterpret_cast<volatile std::uint64_t*>(at) = value;
}

inline std::uint64_t load_u64(const void* at) noexcept {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// One WQE of `blocks` blocks that do not wrap: copied whole, in order, 64 bytes at a time. A plain
// memcpy may reorder its stores, and the device takes a WQE only when it arrives whole.
inline void ring_blue_flame(Uar& uar, const CtrlSegment* wqe, std::uint32_t blocks) noexcept {
  using Half =
      std::uint64_t __attribute__((vector_size(block_bytes / 2), aligned(block_bytes / 2), may_alias));
  record_before_uar();
  const auto* from = reinterpret_cast<const std::byte*>(wqe);
  auto* to = reinterpret_cast<volatile Half*>(uar.registers + uar.offset);
  for (std::uint32_t i = 0; i < blocks; ++i, from += block_bytes, to += 2) {
    Half first;
    Half second;
    std::memcpy(&first, from, sizeof first);
    std::memcpy(&second, from + sizeof first, sizeof second);
    to[0] = first;
    to[1] = second;
  }
  flush_uar();
  uar.offset ^= uar.half_bytes;
}

inline void ring_register(Uar& uar, const CtrlSegment* last) noexcept {
  record_before_uar();
  store_register(uar.registers + uar.offset, load_u64(last));
  flush_uar();
  uar.offset ^= uar.half_bytes;
}

// A doorbell record is read by the device at any time: one 32-bit store, never split.
inline void store_record(std::uint32_t* record, std::uint32_t index) noexcept {
  __atomic_store_n(record, big_endian(index), __ATOMIC_RELAXED);
}

}  // namespace pollen::queue
