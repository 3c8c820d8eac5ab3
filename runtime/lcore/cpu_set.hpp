// A set of CPU numbers, of any size a kernel can have: nothing here stops at 64 or at 1024.
//
// A CPU number is the kernel's (the N of /sys/devices/system/cpu/cpuN). Iteration is in rising
// order. What a person writes is read strictly (a core named twice is a mistake worth telling),
// what the kernel writes leniently. Parsers throw pollen::Error; the sentence quotes the text and
// says where it goes wrong.
//
// Thread rules: a value type.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

namespace pollen::lcore {

class CpuSet {
 public:
  // Linux builds for at most 8192 CPUs. The bound keeps a mistyped number from becoming a huge set.
  static constexpr unsigned limit = 8192;

  CpuSet() = default;
  CpuSet(std::initializer_list<unsigned> cpus);

  // "0-3,8": DPDK's core list. Refuses an empty list, reversed ranges, duplicates.
  static CpuSet parse_list(std::string_view text);
  // "0xf", "f": a hexadecimal mask of any length, bit 0 last. Refuses a mask without bits.
  static CpuSet parse_mask(std::string_view text);
  // The list format of /sys and /proc: as above, but an empty line is an empty set.
  static CpuSet parse_kernel_list(std::string_view text);

  // cpu must be below limit; throws pollen::Error otherwise.
  void add(unsigned cpu);

  bool contains(unsigned cpu) const { return cpus_.contains(cpu); }
  bool empty() const { return cpus_.empty(); }
  unsigned size() const { return static_cast<unsigned>(cpus_.size()); }
  auto begin() const { return cpus_.begin(); }
  auto end() const { return cpus_.end(); }

  std::string list() const;  // "0-3,8"; "none" for the empty set

  friend CpuSet operator&(const CpuSet& a, const CpuSet& b);  // in both
  friend CpuSet operator|(const CpuSet& a, const CpuSet& b);  // in either
  friend CpuSet operator-(const CpuSet& a, const CpuSet& b);  // in a, not in b
  friend bool operator==(const CpuSet& a, const CpuSet& b) = default;

 private:
  std::set<unsigned> cpus_;
};

// "lcore 3" or "lcores 0-3,8", as sentences need it.
std::string lcores_text(const CpuSet& cpus);

}  // namespace pollen::lcore
