// NUMA-local memory that is registered once and carved up at start.
//
// An arena is a sealed memfd, mapped shared: another process of the same user maps the same
// pages through /proc/<pid>/fd/<fd>. It takes the largest pages that the request warrants and
// the machine has (1 GiB, 2 MiB, transparent, plain) and says in report() why not larger ones.
// Everything is faulted in and bound to its node at creation: what can't be had is an error
// then, not a SIGBUS later. A child process doesn't inherit the mapping (MADV_DONTFORK), so
// that a fork never turns registered pages into copies.
//
// Units: bytes. Ownership: the arena owns the mapping and the file descriptor; spans from
// allocate() live as long as it does and are never freed one by one.
// Thread rules: one thread calls allocate() at a time; the const functions are safe anywhere.
// Errors: the constructor and allocate() throw pollen::Error.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "pollen/memory/page.hpp"

namespace pollen::memory {

inline constexpr int any_node = -1;
inline constexpr std::size_t cache_line_bytes = 64;

struct ArenaOptions {
  std::size_t bytes = 0;                 // rounded up to whole pages
  int node = any_node;                   // NUMA node to bind to
  std::string name = "arena";            // shown in /proc/<pid>/maps as memfd:pollen-<name>
  PageKind largest = PageKind::huge_1g;  // plain: plain pages only; transparent: no hugetlb pages
  PageKind smallest = PageKind::plain;   // huge_2m: an error where there are no hugepages
};

class Arena {
 public:
  explicit Arena(const ArenaOptions& options);
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::byte* base() const noexcept { return base_; }
  std::size_t size_bytes() const noexcept { return size_bytes_; }
  std::span<std::byte> span() const noexcept { return {base_, size_bytes_}; }
  int fd() const noexcept { return fd_; }
  int node() const noexcept { return node_; }  // any_node when it is bound to none
  PageKind page_kind() const noexcept { return page_kind_; }

  // A sentence: which pages were obtained on which node, and why not larger ones.
  const std::string& report() const noexcept { return report_; }

  // Zeroed on first use of the arena; align_bytes is a power of two.
  std::span<std::byte> allocate(std::size_t bytes, std::size_t align_bytes = cache_line_bytes);
  std::size_t used_bytes() const noexcept { return used_bytes_; }
  std::size_t free_bytes() const noexcept { return size_bytes_ - used_bytes_; }

  bool contains(const void* address) const noexcept {
    const auto* byte = static_cast<const std::byte*>(address);
    return byte >= base_ && byte < base_ + size_bytes_;
  }

 private:
  void release() noexcept;

  std::byte* base_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  int fd_ = -1;
  int node_ = any_node;
  PageKind page_kind_ = PageKind::plain;
  std::string report_;
};

}  // namespace pollen::memory
