// Waiting a moment without leaving the core: gives its resources to the sibling thread.
#pragma once

#include <cstdint>

namespace pollen::worker {

inline void relax(std::uint32_t times) noexcept {
  for (std::uint32_t i = 0; i < times; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // yield is a no-op on most cores
#endif
  }
}

}  // namespace pollen::worker
