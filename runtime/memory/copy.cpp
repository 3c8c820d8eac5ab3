#include "pollen/memory/copy.hpp"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pollen::memory {

#if defined(__x86_64__)

namespace {

// Without it compilers recognise a copy loop and call memcpy.
inline void keep_the_loop() noexcept { __asm__ volatile("" ::: "memory"); }

template <class Word>
inline void copy_ends(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  Word head;
  Word tail;
  std::memcpy(&head, from, sizeof head);
  std::memcpy(&tail, from + bytes - sizeof tail, sizeof tail);
  std::memcpy(to, &head, sizeof head);
  std::memcpy(to + bytes - sizeof tail, &tail, sizeof tail);
}

struct Block16 {
  std::uint64_t words[2];
};
struct Block32 {
  std::uint64_t words[4];
};

// Sizes up to one vector: two moves of the largest power of two that fits.
template <std::size_t limit>
inline void copy_up_to(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if constexpr (limit >= 64) {
    if (bytes >= 32) return copy_ends<Block32>(to, from, bytes);
  }
  if constexpr (limit >= 32) {
    if (bytes >= 16) return copy_ends<Block16>(to, from, bytes);
  }
  if (bytes >= 8) return copy_ends<std::uint64_t>(to, from, bytes);
  if (bytes >= 4) return copy_ends<std::uint32_t>(to, from, bytes);
  if (bytes >= 2) return copy_ends<std::uint16_t>(to, from, bytes);
  if (bytes == 1) *to = *from;
}

#define POLLEN_COPY copy_sse2
#define POLLEN_TARGET __attribute__((target("sse2")))
#define POLLEN_VECTOR __m128i
#define POLLEN_LOAD(address) _mm_loadu_si128(reinterpret_cast<const __m128i*>(address))
#define POLLEN_STORE(address, value) _mm_storeu_si128(reinterpret_cast<__m128i*>(address), value)
#include "copy_vectors.inc"

#define POLLEN_COPY copy_avx2
#define POLLEN_TARGET __attribute__((target("avx2")))
#define POLLEN_VECTOR __m256i
#define POLLEN_LOAD(address) _mm256_loadu_si256(reinterpret_cast<const __m256i*>(address))
#define POLLEN_STORE(address, value) _mm256_storeu_si256(reinterpret_cast<__m256i*>(address), value)
#include "copy_vectors.inc"

#define POLLEN_COPY copy_avx512
#define POLLEN_TARGET __attribute__((target("avx512f")))
#define POLLEN_VECTOR __m512i
#define POLLEN_LOAD(address) _mm512_loadu_si512(address)
#define POLLEN_STORE(address, value) _mm512_storeu_si512(address, value)
#include "copy_vectors.inc"

struct Engines {
  std::array<CopyEngine, 3> list;
  std::size_t count = 0;
};

Engines find_engines() noexcept {
  Engines engines;
  const auto add = [&engines](CopyEngine engine) { engines.list[engines.count++] = engine; };
  __builtin_cpu_init();
  // VBMI2 tells the CPUs that keep their clock under 512-bit moves (Ice Lake, Zen 4 and later)
  // from the first ones, which lower it.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vbmi2")) {
    add({"AVX-512", copy_avx512});
  }
  if (__builtin_cpu_supports("avx2")) add({"AVX2", copy_avx2});
  add({"SSE2", copy_sse2});
  return engines;
}

}  // namespace

std::span<const CopyEngine> copy_engines() noexcept {
  static const Engines engines = find_engines();
  return {engines.list.data(), engines.count};
}

namespace detail {
// Constant-initialised, so that a copy in another file's static constructor works; replaced by
// the best engine before main().
constinit CopyFunction copy_function = copy_sse2;
}  // namespace detail

namespace {
[[maybe_unused]] const bool chosen = (detail::copy_function = copy_engines().front().function, true);
}

#else

namespace {
void copy_memcpy(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
}  // namespace

namespace detail {
constinit CopyFunction copy_function = copy_memcpy;
}

// AArch64 included: glibc's memcpy uses NEON pairs or SVE there.
std::span<const CopyEngine> copy_engines() noexcept {
  static constexpr std::array engines{CopyEngine{"memcpy", copy_memcpy}};
  return engines;
}

#endif

}  // namespace pollen::memory
