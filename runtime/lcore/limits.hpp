// What this process may use of the machine: which CPUs, by whose word, and how much of their time.
//
// Allowed = CPUs that exist ∩ are online ∩ the cgroup's cpuset ∩ the affinity mask. Each refused CPU
// is attributed to the first of these that excludes it, since the later ones only follow from it.
//
// Thread rules: values, read once at start. Errors: pollen::Error if a file holds nonsense; a file
// that is missing sets no limit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pollen/lcore/cpu_set.hpp"
#include "pollen/lcore/host.hpp"

namespace pollen::lcore {

struct CpuLimit {
  CpuSet cpus;         // what it lets through
  std::string why;     // "not in cpuset.cpus.effective of cgroup /foo (v2), which is 0-3"
  std::string remedy;  // how to widen it
};

struct Refusal {
  CpuSet cpus;  // never empty
  std::string why;
  std::string remedy;
};

struct Quota {
  double cpus = 0;    // CPU time per time: 2.5
  std::string where;  // "cpu.max of cgroup /foo (v2) is 250000 100000"
};

struct Limits {
  std::vector<CpuLimit> cpu_limits;  // in the order of attribution
  CpuSet allowed;
  std::optional<Quota> quota;  // the tightest of the cgroup and its parents

  // Why those of asked that are not allowed are not; empty if all are.
  std::vector<Refusal> refusals(const CpuSet& asked) const;
};

Limits read_limits(const Host& host);

}  // namespace pollen::lcore
