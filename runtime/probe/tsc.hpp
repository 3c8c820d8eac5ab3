// The CPU's time stamp counter: the cheapest clock there is, and its scale in nanoseconds.
//
// Units: cycles of the counter (not of the core's clock) and nanoseconds. The counter ticks at a
// constant rate on every CPU of the last fifteen years; TscScale::invariant tells.
// Thread rules: safe anywhere. The first call of tsc_scale() may take 20 ms: make it before the loop.
// Errors: none.
#pragma once

#include <cstdint>
#include <string_view>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace pollen::probe {

#if defined(__x86_64__)

inline std::uint64_t now_cycles() noexcept { return __rdtsc(); }

// Waits for the instructions before it, so that a short stretch of code is measured and not what
// the CPU runs ahead of it. Costs more; for samples only.
inline std::uint64_t now_cycles_ordered() noexcept {
  _mm_lfence();
  return __rdtsc();
}

#elif defined(__aarch64__)

inline std::uint64_t now_cycles() noexcept {
  std::uint64_t cycles;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(cycles));
  return cycles;
}

inline std::uint64_t now_cycles_ordered() noexcept {
  std::uint64_t cycles;
  __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(cycles)::"memory");
  return cycles;
}

#else
#error "pollen knows the time stamp counters of x86-64 and AArch64"
#endif

class TscScale {
 public:
  TscScale(double cycles_per_ns, std::string_view source, bool invariant) noexcept;

  std::uint64_t to_ns(std::uint64_t cycles) const noexcept { return scaled(cycles, ns_per_cycle_); }
  std::uint64_t to_cycles(std::uint64_t ns) const noexcept { return scaled(ns, cycles_per_ns_fixed_); }
  double ns(double cycles) const noexcept { return cycles / cycles_per_ns_; }

  double cycles_per_ns() const noexcept { return cycles_per_ns_; }
  std::string_view source() const noexcept { return source_; }  // "kernel", "cpuid", "cntfrq" or "measured"
  bool invariant() const noexcept { return invariant_; }

 private:
  __extension__ using Wide = unsigned __int128;

  // Fixed point with 32 bits behind the point: exact enough for a century of cycles.
  static std::uint64_t scaled(std::uint64_t value, std::uint64_t factor) noexcept {
    return static_cast<std::uint64_t>((static_cast<Wide>(value) * factor + (1U << 31)) >> 32);
  }

  double cycles_per_ns_;
  std::uint64_t ns_per_cycle_;
  std::uint64_t cycles_per_ns_fixed_;
  std::string_view source_;
  bool invariant_;
};

// Found once per process: from the kernel's own calibration, else from the CPU, else measured
// against CLOCK_MONOTONIC_RAW.
const TscScale& tsc_scale();

// The measurement behind the last resort, here for comparison.
double measured_cycles_per_ns(std::uint64_t duration_ns);

// What two now_cycles_ordered() with nothing between them differ by.
std::uint64_t ordered_reading_cycles();

}  // namespace pollen::probe
