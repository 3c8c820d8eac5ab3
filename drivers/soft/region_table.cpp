#include "pollen/drivers/soft/region_table.hpp"

#include <fmt/format.h>
#include <linux/membarrier.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "pollen/base/error.hpp"

namespace pollen::soft {

RegionTable::RegionTable() {
  // From now on every running thread of the process passes a full barrier when end() asks for
  // one; in exchange an engine's turn needs none.
  syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

std::uint32_t RegionTable::add(std::uint32_t pd, std::span<std::byte> memory, driver::Access access,
                               driver::SharedBacking backing, std::uint64_t address) {
  const std::lock_guard guard(mutex_);
  std::uint32_t index = next_index_;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else {
    if (index >= max_chunks * chunk_entries)
      throw Error(ENOMEM, {.attempted = "register a memory region",
                           .why = fmt::format("all {} entries are taken", max_chunks * chunk_entries),
                           .remedy = "Register a few large regions and carve buffers out of them"});
    if (index / chunk_entries >= owned_.size()) {
      owned_.push_back(std::make_unique<Chunk>());
      chunks_[owned_.size() - 1].store(owned_.back().get(), std::memory_order_release);
    }
    ++next_index_;
    tags_.resize(next_index_, 0);
  }
  RegionEntry& entry = *entry_of(index << 8);
  entry.pd = pd;
  entry.access = access;
  entry.address = address;
  entry.bytes = memory.size();
  entry.shift = reinterpret_cast<std::uint64_t>(memory.data()) - address;
  entry.backing_fd = own_address_space;
  struct stat info {};
  if (backing.fd >= 0 && fstat(backing.fd, &info) == 0) {
    entry.backing_fd = static_cast<std::uint32_t>(backing.fd);
    entry.backing_inode = static_cast<std::uint32_t>(info.st_ino);
    entry.backing_offset = backing.offset;
  }
  const std::uint32_t key = index << 8 | ++tags_[index];
  entry.key.store(key, std::memory_order_release);
  return key;
}

void RegionTable::end(std::uint32_t key) noexcept {
  const std::lock_guard guard(mutex_);
  RegionEntry* entry = entry_of(key);
  if (entry == nullptr) return;
  entry->key.store(0, std::memory_order_release);
  wait_for_turns();
  free_.push_back(key >> 8);
}

void RegionTable::change(std::uint32_t key, std::uint32_t pd, std::span<std::byte> memory,
                         driver::Access access, std::uint64_t address) noexcept {
  const std::lock_guard guard(mutex_);
  RegionEntry* entry = entry_of(key);
  if (entry == nullptr) return;
  entry->key.store(0, std::memory_order_release);
  wait_for_turns();
  entry->pd = pd;
  entry->access = access;
  entry->address = address;
  entry->bytes = memory.size();
  entry->shift = reinterpret_cast<std::uint64_t>(memory.data()) - address;
  entry->backing_fd = own_address_space;
  entry->key.store(key, std::memory_order_release);
}

bool RegionTable::invalidate(std::uint32_t key, std::uint32_t pd) noexcept {
  RegionEntry* entry = entry_of(key);
  if (entry == nullptr || key == 0 || entry->key.load(std::memory_order_acquire) != key || entry->pd != pd ||
      !driver::allows(entry->access, driver::Access::remote_invalidate))
    return false;
  return entry->key.compare_exchange_strong(key, 0, std::memory_order_acq_rel);
}

void RegionTable::wait_for_turns() noexcept {
  // The key is cleared for everyone before the counters are read, and an engine that reads the old
  // key has published its odd counter before: that takes a barrier on both sides, and the kernel
  // makes the engines' for them.
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
    std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const TurnCounter* turns : engines_) {
    const std::uint64_t seen = turns->count.load(std::memory_order_acquire);
    if (seen % 2 == 0) continue;
    // A turn is short and never waits; an engine that was stopped in the middle of one may hold
    // this up, but not for ever.
    for (int i = 0; i < 1'000'000 && turns->count.load(std::memory_order_acquire) == seen; ++i)
      if (i % 64 == 63) std::this_thread::yield();
  }
}

void RegionTable::add_engine(TurnCounter* turns) {
  const std::lock_guard guard(mutex_);
  engines_.push_back(turns);
}

void RegionTable::remove_engine(TurnCounter* turns) noexcept {
  const std::lock_guard guard(mutex_);
  std::erase(engines_, turns);
}

}  // namespace pollen::soft
