#include "pollen/probe/hw_counters.hpp"

#include <fmt/format.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace pollen::probe {

namespace {

std::string reason(int errnum) {
  switch (errnum) {
    case ENOENT:
    case ENODEV:
    case EOPNOTSUPP:
      return "this CPU or virtual machine offers no hardware counters";
    case ENOSYS:
      return "this kernel has no perf events, or a container's seccomp filter forbids them";
    case EACCES:
    case EPERM: {
      int paranoid = 0;
      std::ifstream("/proc/sys/kernel/perf_event_paranoid") >> paranoid;
      return fmt::format(
          "perf_event_open is not permitted (perf_event_paranoid is {}; sysctl kernel.perf_event_paranoid=2, "
          "or grant "
          "CAP_PERFMON)",
          paranoid);
    }
    default:
      return fmt::format("perf_event_open: {}", std::generic_category().message(errnum));
  }
}

std::optional<std::uint64_t> difference(std::optional<std::uint64_t> later,
                                        std::optional<std::uint64_t> earlier) noexcept {
  if (!later || !earlier) return std::nullopt;
  return *later > *earlier ? *later - *earlier : 0;
}

}  // namespace

PerfEvent::PerfEvent(std::uint32_t type, std::uint64_t config) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = type;
  attributes.config = config;
  attributes.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  fd_ = static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
  if (fd_ < 0) {
    why_not_ = reason(errno);
    return;
  }
  page_bytes_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* page = ::mmap(nullptr, page_bytes_, PROT_READ, MAP_SHARED, fd_, 0);
  if (page != MAP_FAILED) page_ = static_cast<const perf_event_mmap_page*>(page);
}

PerfEvent::~PerfEvent() {
  if (page_ != nullptr) ::munmap(const_cast<perf_event_mmap_page*>(page_), page_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::optional<std::uint64_t> PerfEvent::read() const noexcept {
  struct {
    std::uint64_t value;
    std::uint64_t enabled_ns;
    std::uint64_t running_ns;
  } count{};
  if (fd_ < 0 || ::read(fd_, &count, sizeof count) != static_cast<ssize_t>(sizeof count)) return std::nullopt;
  if (count.running_ns == 0)
    return count.enabled_ns == 0 ? std::optional<std::uint64_t>(count.value) : std::nullopt;
  if (count.running_ns == count.enabled_ns) return count.value;
  const double share = static_cast<double>(count.enabled_ns) / static_cast<double>(count.running_ns);
  return static_cast<std::uint64_t>(static_cast<double>(count.value) * share);
}

bool PerfEvent::fast() const noexcept {
#if defined(__x86_64__)
  return page_ != nullptr && page_->cap_user_rdpmc;
#else
  return false;
#endif
}

std::optional<std::uint64_t> PerfEvent::read_fast() const noexcept {
#if defined(__x86_64__)
  if (!fast()) return read();
  // The kernel moves the event between counters at will; lock changes when it has.
  const volatile perf_event_mmap_page* page = page_;
  while (true) {
    const std::uint32_t sequence = page->lock;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const std::uint32_t index = page->index;
    const bool shared = page->time_enabled != page->time_running;
    std::int64_t count = page->offset;
    if (index == 0 || shared) return read();
    const unsigned unused_bits = 64U - page->pmc_width;
    const std::uint64_t counter = __rdpmc(static_cast<int>(index - 1));
    if (unused_bits < 64) count += static_cast<std::int64_t>(counter << unused_bits) >> unused_bits;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (page->lock == sequence) return static_cast<std::uint64_t>(count);
  }
#else
  return read();
#endif
}

HwReading operator-(const HwReading& later, const HwReading& earlier) noexcept {
  return {.instructions = difference(later.instructions, earlier.instructions),
          .cycles = difference(later.cycles, earlier.cycles),
          .cache_misses = difference(later.cache_misses, earlier.cache_misses)};
}

HwCounters::HwCounters()
    : instructions_(PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS),
      cycles_(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES),
      cache_misses_(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES) {}

HwReading HwCounters::read() const noexcept {
  return {
      .instructions = instructions_.read(), .cycles = cycles_.read(), .cache_misses = cache_misses_.read()};
}

HwReading HwCounters::read_fast() const noexcept {
  return {.instructions = instructions_.read_fast(),
          .cycles = cycles_.read_fast(),
          .cache_misses = cache_misses_.read_fast()};
}

std::string HwCounters::status() const {
  std::string present;
  std::string absent;
  std::string why;
  for (const auto& [event, text] :
       {std::pair<const PerfEvent&, const char*>{instructions_, "instructions"},
        std::pair<const PerfEvent&, const char*>{cycles_, "cycles"},
        std::pair<const PerfEvent&, const char*>{cache_misses_, "cache misses"}}) {
    std::string& list = event.available() ? present : absent;
    list += (list.empty() ? "" : ", ") + std::string(text);
    if (!event.available()) why = event.why_not();
  }
  if (absent.empty()) return present;
  if (present.empty()) return "not available: " + why;
  return fmt::format("{}; {} not available: {}", present, absent, why);
}

}  // namespace pollen::probe
