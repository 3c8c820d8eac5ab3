// Instructions, cycles and cache misses of one thread, counted by the CPU in user space: where
// the machine has such counters and lets us read them; else the reason why not.
//
// Units: pieces since the counters were opened, scaled up where the kernel had to share the
// CPU's counters between events. Ownership: file descriptors and mappings.
// Thread rules: counts the thread that makes it. read() from any thread; read_fast() owner only.
// Errors: none; what is missing is absent, and status() says why.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

struct perf_event_mmap_page;

namespace pollen::probe {

// One event of the calling thread, of any type that perf_event_open knows.
class PerfEvent {
 public:
  PerfEvent(std::uint32_t type, std::uint64_t config);
  ~PerfEvent();
  PerfEvent(const PerfEvent&) = delete;
  PerfEvent& operator=(const PerfEvent&) = delete;

  bool available() const noexcept { return fd_ >= 0; }
  const std::string& why_not() const noexcept { return why_not_; }

  std::optional<std::uint64_t> read() const noexcept;       // a system call
  std::optional<std::uint64_t> read_fast() const noexcept;  // rdpmc where allowed, else read()
  bool fast() const noexcept;                               // whether rdpmc is allowed

 private:
  int fd_ = -1;
  const perf_event_mmap_page* page_ = nullptr;
  std::size_t page_bytes_ = 0;
  std::string why_not_;
};

struct HwReading {
  std::optional<std::uint64_t> instructions = {};
  std::optional<std::uint64_t> cycles = {};  // of the core's clock
  std::optional<std::uint64_t> cache_misses = {};
};

HwReading operator-(const HwReading& later, const HwReading& earlier) noexcept;

class HwCounters {
 public:
  HwCounters();

  HwReading read() const noexcept;
  HwReading read_fast() const noexcept;

  // "instructions, cycles, cache misses", or "not available: <reason>", or both for parts.
  std::string status() const;

 private:
  PerfEvent instructions_;
  PerfEvent cycles_;
  PerfEvent cache_misses_;
};

}  // namespace pollen::probe
