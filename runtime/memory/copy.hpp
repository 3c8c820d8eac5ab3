// Copies bytes with the widest vectors that the CPU has, chosen once when the program is loaded.
//
// Why not memcpy: from about 2 KiB on glibc may use `rep movsb`, which was measured ten times and
// more slower than vector copies on some AMD machines.
//
// Contract: memcpy's. The ranges don't overlap; nothing is read past the source or written past
// the destination; any alignment and any size, zero included.
// Thread rules: safe anywhere. Errors: none, noexcept.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace pollen::memory {

using CopyFunction = void (*)(void* to, const void* from, std::size_t bytes) noexcept;

namespace detail {
extern CopyFunction copy_function;
}

inline void copy(void* to, const void* from, std::size_t bytes) noexcept {
  detail::copy_function(to, from, bytes);
}

struct CopyEngine {
  std::string_view name;  // "AVX-512", "AVX2", "SSE2" or "memcpy"
  CopyFunction function;
};

// The engines that this CPU can run, best first; copy() uses the first. For tests and comparisons.
std::span<const CopyEngine> copy_engines() noexcept;

inline std::string_view copy_engine_name() noexcept { return copy_engines().front().name; }

}  // namespace pollen::memory
