// What an engine can see of another process's memory: files that the process has named in its
// packets, mapped read-only. So a payload is copied once, from the sender's buffer to its
// destination, as a NIC's DMA would.
//
// A file is taken only if it can't shrink any more (sealed memfd): the sender could otherwise make
// a read of it a SIGBUS here. If it can't be had at all (another PID namespace, another user), the
// lane says so to its sender, which copies from then on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pollen/drivers/soft/packet.hpp"
#include "pollen/drivers/soft/process.hpp"

namespace pollen::soft {

class PeerMemory {
 public:
  explicit PeerMemory(ProcessId peer) noexcept : peer_(peer) {}
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Where `bytes` bytes at the reference are in this process; null when they can't be seen.
  const std::byte* find(const PayloadReference& reference, std::uint32_t bytes) noexcept {
    for (const File& file : files_)
      if (file.backing == reference.backing && file.inode == reference.inode) {
        if (reference.offset > file.bytes || file.bytes - reference.offset < bytes) return nullptr;
        return file.memory + reference.offset;
      }
    return map(reference, bytes);
  }

 private:
  struct File {
    std::uint32_t backing;
    std::uint32_t inode;
    const std::byte* memory;
    std::uint64_t bytes;  // 0: it was refused; not asked for again
  };
  static constexpr std::size_t max_files = 256;

  const std::byte* map(const PayloadReference& reference, std::uint32_t bytes) noexcept;

  ProcessId peer_;
  std::vector<File> files_;
};

}  // namespace pollen::soft
