// What the kernel says about the memory of a node: counts of hugepages, free memory, whether
// transparent hugepages are on. Internal to arena.cpp; the sentences explain an arena's pages.
//
// Thread rules: safe anywhere; reads /sys and /proc. Errors: none; what can't be read is absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pollen/memory/page.hpp"

namespace pollen::memory {

struct HugepageCount {
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  std::string file;  // where the total is raised: …/nr_hugepages
};

// kind is huge_1g or huge_2m; of one node, or of the machine for any_node. None when this
// kernel has no such pages.
std::optional<HugepageCount> hugepage_count(PageKind kind, int node);

// Memory that can be had without swapping, page cache that can be dropped included.
std::optional<std::uint64_t> available_bytes(int node);

// How the kernel treats shared memory: "never", "advise", …; empty without transparent hugepages.
std::string shared_transparent_mode();

// Bytes of the mapping at base that are mapped by transparent hugepages.
std::uint64_t transparent_bytes(const void* base);

}  // namespace pollen::memory
