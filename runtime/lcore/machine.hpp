// Everything that the choice of lcores depends on, read once at start.
//
// Thread rules: read() before other threads start (see topology.hpp); a value afterwards.
// Errors: pollen::Error.
#pragma once

#include "pollen/lcore/cpu_set.hpp"
#include "pollen/lcore/host.hpp"
#include "pollen/lcore/limits.hpp"
#include "pollen/lcore/topology.hpp"

namespace pollen::lcore {

struct Machine {
  Host host;
  Limits limits;
  Topology topology;
  CpuSet isolated;   // the scheduler puts nothing there by itself: isolcpus, isolated cpuset partition
  CpuSet exclusive;  // no sibling cgroup may use them: a cpuset that is exclusive
  CpuSet tickless;   // nohz_full

  static Machine read(const Host& host = Host());
};

}  // namespace pollen::lcore
