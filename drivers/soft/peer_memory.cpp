#include "pollen/drivers/soft/peer_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <new>

namespace pollen::soft {

PeerMemory::~PeerMemory() {
  for (const File& file : files_)
    if (file.bytes != 0) munmap(const_cast<std::byte*>(file.memory), file.bytes);
}

const std::byte* PeerMemory::map(const PayloadReference& reference, std::uint32_t bytes) noexcept {
  if (files_.size() >= max_files) return nullptr;
  File file{reference.backing, reference.inode, nullptr, 0};
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%u", peer_.pid, reference.backing);
  const int fd = is_alive(peer_) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  if (fd >= 0) {
    struct stat info {};
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &info) == 0 && info.st_size > 0 &&
        static_cast<std::uint32_t>(info.st_ino) == reference.inode) {
      const auto size = static_cast<std::uint64_t>(info.st_size);
      void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
      if (memory != MAP_FAILED) {
        file.memory = static_cast<const std::byte*>(memory);
        file.bytes = size;
      }
    }
    close(fd);
  }
  try {
    files_.push_back(file);
  } catch (const std::bad_alloc&) {
    if (file.bytes != 0) munmap(const_cast<std::byte*>(file.memory), file.bytes);
    return nullptr;
  }
  if (file.bytes == 0) return nullptr;
  if (reference.offset > file.bytes || file.bytes - reference.offset < bytes) return nullptr;
  return file.memory + reference.offset;
}

}  // namespace pollen::soft
