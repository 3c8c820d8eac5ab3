// The choice of lcores: which CPUs get a worker.
//
// Asked for: exactly those; one that is not allowed is refused by name, with where the limit comes
// from. Otherwise: one per physical core of the device's NUMA node, up to what is allowed, without
// those that another Pollen process holds, and no more than the CPU quota covers.
//
// Thread rules: values. Errors: pollen::Error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pollen/lcore/cpu_set.hpp"
#include "pollen/lcore/idle.hpp"
#include "pollen/lcore/machine.hpp"

namespace pollen::lcore {

struct Lcore {
  unsigned cpu = 0;
  unsigned core = 0;  // physical core, package and node as in CpuPlace
  unsigned package = 0;
  unsigned node = 0;
  bool set_aside = false;  // isolcpus, nohz_full or an exclusive cpuset keep others away
};

struct Advice {
  enum class Kind { smt_siblings, cpu0, far_node, not_isolated, timer_tick, governor, quota };
  Kind kind;
  std::string text;  // what was found: "lcores 0,64 are threads of one physical core"
  std::string fix;   // an instruction: "use --lcores 0"
};

struct PlanRequest {
  std::optional<CpuSet> lcores = {};         // asked for by name
  std::optional<unsigned> node = {};         // the device's NUMA node, where known
  std::optional<unsigned> max_workers = {};  // bounds the default choice only
  CpuSet taken = {};                         // held by others (held_lcores()); the default choice avoids them
};

struct Plan {
  std::vector<Lcore> lcores;  // in rising order of cpu; never empty
  std::vector<Advice> advice;
  bool exceeds_quota = false;

  CpuSet cpus() const;
};

Plan make_plan(const Machine& machine, const PlanRequest& request);

// Spin where every lcore was set aside for us, since there is nobody to take the time from. Pause
// elsewhere: other work runs there now or may at any time, and the sibling thread of the core gains.
// Sleep where the quota is less than the workers can burn: spinning would only use it up on nothing,
// and the kernel would then stop the worker when there is work.
Idle default_idle(const Plan& plan);

}  // namespace pollen::lcore
