// The memory regions of a device, looked up for every packet and every WQE.
//
// Engines read it without a lock while control threads register and end regions. An entry is in
// force while its key is; ending a region clears the key and then waits until no engine is still
// inside a turn in which it may have seen it (RegionTable::end). So memory that a program has
// taken back is never touched afterwards, as on hardware.
//
//   key    index:24  tag:8     lkey and rkey are the same number, as on mlx5; the tag changes with
//                              each use of the entry, so that a stale key is refused
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/soft/packet.hpp"

namespace pollen::soft {

struct RegionEntry {
  std::atomic<std::uint32_t> key{0};
  std::uint32_t pd = 0;
  driver::Access access = driver::Access::none;
  std::uint64_t address = 0;  // as packets and WQEs name it
  std::uint64_t bytes = 0;
  std::uint64_t shift = 0;          // added to that, modulo 2^64, it is where the memory is
  std::uint32_t backing_fd = 0;     // own_address_space: none
  std::uint32_t backing_inode = 0;  // its low bits, to know the file again
  std::uint64_t backing_offset = 0;

  bool covers(std::uint64_t at, std::uint64_t length) const noexcept {
    return at >= address && length <= bytes && at - address <= bytes - length;
  }
  std::byte* memory(std::uint64_t at) const noexcept { return reinterpret_cast<std::byte*>(at + shift); }
};

// Turns of an engine: odd while it may hold on to what it looked up.
struct alignas(64) TurnCounter {
  std::atomic<std::uint64_t> count{0};

  void enter() noexcept { count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void leave() noexcept { count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
};

class RegionTable {
 public:
  RegionTable();

  // Throws Error when the table is full. `address` is what the region's first byte is called in
  // WQEs and packets; most call it by its address.
  std::uint32_t add(std::uint32_t pd, std::span<std::byte> memory, driver::Access access,
                    driver::SharedBacking backing) {
    return add(pd, memory, access, backing, reinterpret_cast<std::uint64_t>(memory.data()));
  }
  std::uint32_t add(std::uint32_t pd, std::span<std::byte> memory, driver::Access access,
                    driver::SharedBacking backing, std::uint64_t address);
  void end(std::uint32_t key) noexcept;
  // Another memory, domain or access behind the same key.
  void change(std::uint32_t key, std::uint32_t pd, std::span<std::byte> memory, driver::Access access,
              std::uint64_t address) noexcept;

  // The region with this key in this protection domain that covers the range and grants `access`;
  // null otherwise. Inside an engine's turn.
  const RegionEntry* find(std::uint32_t key, std::uint32_t pd, std::uint64_t address, std::uint64_t bytes,
                          driver::Access access) const noexcept {
    const RegionEntry* entry = entry_of(key);
    if (entry == nullptr || entry->key.load(std::memory_order_acquire) != key || key == 0) return nullptr;
    if (entry->pd != pd || !driver::allows(entry->access, access) || !entry->covers(address, bytes))
      return nullptr;
    return entry;
  }

  // `bytes` bytes at this place in memory, if the region with this key is in force and has them.
  const std::byte* readable(std::uint32_t key, std::uint64_t place, std::uint64_t bytes) const noexcept {
    const RegionEntry* entry = entry_of(key);
    if (entry == nullptr || entry->key.load(std::memory_order_acquire) != key || key == 0 ||
        !entry->covers(place - entry->shift, bytes))
      return nullptr;
    return reinterpret_cast<const std::byte*>(place);
  }

  // A peer's SEND_WITH_INV: the key is out of force. False: no such key, or it may not be.
  bool invalidate(std::uint32_t key, std::uint32_t pd) noexcept;

  void add_engine(TurnCounter* turns);
  void remove_engine(TurnCounter* turns) noexcept;

 private:
  static constexpr std::uint32_t chunk_entries = 1024;
  static constexpr std::uint32_t max_chunks = 256;
  static constexpr std::uint32_t first_index = 16;  // below: reserved keys, 0x100 among them

  using Chunk = std::array<RegionEntry, chunk_entries>;

  RegionEntry* entry_of(std::uint32_t key) const noexcept {
    const std::uint32_t index = key >> 8;
    if (index / chunk_entries >= max_chunks) return nullptr;
    Chunk* chunk = chunks_[index / chunk_entries].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &(*chunk)[index % chunk_entries];
  }
  void wait_for_turns() noexcept;

  std::array<std::atomic<Chunk*>, max_chunks> chunks_{};
  std::mutex mutex_;  // control path: all below
  std::vector<std::unique_ptr<Chunk>> owned_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint8_t> tags_;  // by index: the last one used
  std::uint32_t next_index_ = first_index;
  std::vector<TurnCounter*> engines_;
};

}  // namespace pollen::soft
