#include "pollen/probe/tsc.hpp"

#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace pollen::probe {

namespace {

constexpr double fixed_one = 4294967296.0;

std::uint64_t raw_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

struct Instant {
  std::uint64_t cycles = 0;
  std::uint64_t ns = 0;
};

// The two clocks at the same moment: of several tries the one that was interrupted least.
Instant instant() noexcept {
  Instant best;
  std::uint64_t narrowest = std::numeric_limits<std::uint64_t>::max();
  for (int i = 0; i < 16; ++i) {
    const std::uint64_t before = now_cycles_ordered();
    const std::uint64_t ns = raw_ns();
    const std::uint64_t after = now_cycles_ordered();
    if (after - before < narrowest) {
      narrowest = after - before;
      best = {before + (after - before) / 2, ns};
    }
  }
  return best;
}

// The kernel publishes the scale of its own clock in every perf event's page.
std::optional<double> kernel_cycles_per_ns() {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.config = PERF_COUNT_SW_DUMMY;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  const long fd = ::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
  if (fd < 0) return std::nullopt;
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* mapped = ::mmap(nullptr, page_bytes, PROT_READ, MAP_SHARED, static_cast<int>(fd), 0);
  ::close(static_cast<int>(fd));
  if (mapped == MAP_FAILED) return std::nullopt;
  const auto* page = static_cast<const perf_event_mmap_page*>(mapped);
  std::optional<double> scale;
  if (page->cap_user_time && page->time_mult != 0 && page->time_shift < 64) {
    scale = static_cast<double>(std::uint64_t{1} << page->time_shift) / static_cast<double>(page->time_mult);
  }
  ::munmap(mapped, page_bytes);
  return scale;
}

#if defined(__x86_64__)

std::optional<double> cpu_cycles_per_ns() {
  unsigned denominator = 0;
  unsigned numerator = 0;
  unsigned crystal_hz = 0;
  unsigned unused = 0;
  if (__get_cpuid(0x15, &denominator, &numerator, &crystal_hz, &unused) == 0) return std::nullopt;
  if (denominator == 0 || numerator == 0 || crystal_hz == 0) return std::nullopt;
  return static_cast<double>(crystal_hz) * numerator / denominator / 1e9;
}
constexpr std::string_view cpu_source = "cpuid";

bool is_invariant() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
}

#else

std::optional<double> cpu_cycles_per_ns() {
  std::uint64_t hz = 0;
  __asm__("mrs %0, cntfrq_el0" : "=r"(hz));
  if (hz == 0) return std::nullopt;
  return static_cast<double>(hz) / 1e9;
}
constexpr std::string_view cpu_source = "cntfrq";

bool is_invariant() { return true; }

#endif

TscScale find_scale() {
  const bool invariant = is_invariant();
  if (const auto scale = kernel_cycles_per_ns()) return {*scale, "kernel", invariant};
  if (const auto scale = cpu_cycles_per_ns()) return {*scale, cpu_source, invariant};
  return {measured_cycles_per_ns(20'000'000), "measured", invariant};
}

}  // namespace

TscScale::TscScale(double cycles_per_ns, std::string_view source, bool invariant) noexcept
    : cycles_per_ns_(cycles_per_ns),
      ns_per_cycle_(static_cast<std::uint64_t>(fixed_one / cycles_per_ns + 0.5)),
      cycles_per_ns_fixed_(static_cast<std::uint64_t>(fixed_one * cycles_per_ns + 0.5)),
      source_(source),
      invariant_(invariant) {}

const TscScale& tsc_scale() {
  static const TscScale scale = find_scale();
  return scale;
}

double measured_cycles_per_ns(std::uint64_t duration_ns) {
  const Instant start = instant();
  while (raw_ns() - start.ns < duration_ns) {
  }
  const Instant end = instant();
  return static_cast<double>(end.cycles - start.cycles) / static_cast<double>(end.ns - start.ns);
}

std::uint64_t ordered_reading_cycles() {
  static const std::uint64_t cycles = [] {
    std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
    for (int i = 0; i < 1000; ++i) {
      const std::uint64_t before = now_cycles_ordered();
      least = std::min(least, now_cycles_ordered() - before);
    }
    return least;
  }();
  return cycles;
}

}  // namespace pollen::probe
