#include "pollen/lcore/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "pollen/base/error.hpp"
#include "pollen/lcore/advice.hpp"

namespace pollen::lcore {

namespace {

[[noreturn]] void refuse(const Machine& machine, const std::vector<Refusal>& refusals) {
  CpuSet cpus;
  std::string why;
  std::string remedy;
  for (const Refusal& refusal : refusals) {
    cpus = cpus | refusal.cpus;
    if (!why.empty()) why += "; ";
    if (refusals.size() > 1) why += fmt::format("{}: ", refusal.cpus.list());
    why += refusal.why;
    if (!refusal.remedy.empty()) remedy += ", or " + refusal.remedy;
  }
  throw Error(EINVAL, {.attempted = fmt::format("use {}", lcores_text(cpus)),
                       .why = std::move(why),
                       .remedy = fmt::format("Choose among {}{}", machine.limits.allowed.list(), remedy)});
}

// Without a device whose node is known, the node where most of the allowed CPUs are.
CpuSet default_node_cpus(const Machine& machine, std::optional<unsigned> node) {
  const CpuSet& allowed = machine.limits.allowed;
  if (node) {
    CpuSet near = allowed & machine.topology.node_cpus(*node);
    return near.empty() ? allowed : near;
  }
  CpuSet most;
  std::set<unsigned> seen;
  for (const unsigned cpu : allowed) {
    const unsigned own = machine.topology.place(cpu).node;
    if (!seen.insert(own).second) continue;
    CpuSet here = allowed & machine.topology.node_cpus(own);
    if (here.size() > most.size()) most = std::move(here);
  }
  return most.empty() ? allowed : most;
}

bool is_set_aside(const Machine& machine, unsigned cpu) {
  return machine.isolated.contains(cpu) || machine.tickless.contains(cpu) || machine.exclusive.contains(cpu);
}

CpuSet choose(const Machine& machine, const PlanRequest& request) {
  // One thread of each physical core, the first that is allowed. A core of which another process
  // holds either thread is taken.
  std::set<unsigned> used_cores;
  for (const unsigned cpu : request.taken) used_cores.insert(machine.topology.place(cpu).core);
  std::vector<unsigned> candidates;
  for (const unsigned cpu : default_node_cpus(machine, request.node)) {
    if (used_cores.insert(machine.topology.place(cpu).core).second) candidates.push_back(cpu);
  }
  if (candidates.empty()) {
    throw Error(EBUSY,
                {.attempted = "choose lcores",
                 .why = fmt::format("other Pollen processes hold {}, and no physical core is left among the "
                                    "allowed CPUs {}",
                                    lcores_text(request.taken), machine.limits.allowed.list()),
                 .remedy = "Stop one of them, or name free ones with --lcores"});
  }

  // Where not all can be had: those set aside for such work first, CPU 0 last.
  auto rank = [&](unsigned cpu) { return is_set_aside(machine, cpu) ? 0 : cpu == 0 ? 2 : 1; };
  std::ranges::stable_sort(candidates, {}, rank);
  std::size_t count = candidates.size();
  if (request.max_workers) count = std::min<std::size_t>(count, std::max(1U, *request.max_workers));
  if (machine.limits.quota) {
    count = std::min(count, static_cast<std::size_t>(std::max(1.0, machine.limits.quota->cpus)));
  }
  CpuSet out;
  for (std::size_t i = 0; i < count; ++i) out.add(candidates[i]);
  return out;
}

}  // namespace

CpuSet Plan::cpus() const {
  CpuSet out;
  for (const Lcore& lcore : lcores) out.add(lcore.cpu);
  return out;
}

Plan make_plan(const Machine& machine, const PlanRequest& request) {
  if (request.lcores) {
    const auto refusals = machine.limits.refusals(*request.lcores);
    if (!refusals.empty()) refuse(machine, refusals);
  }
  const CpuSet cpus = request.lcores ? *request.lcores : choose(machine, request);
  if (cpus.empty()) throw Error(EINVAL, {.attempted = "choose lcores", .why = "the list is empty"});

  Plan plan;
  for (const unsigned cpu : cpus) {
    const CpuPlace place = machine.topology.place(cpu);
    plan.lcores.push_back({.cpu = cpu,
                           .core = place.core,
                           .package = place.package,
                           .node = place.node,
                           .set_aside = is_set_aside(machine, cpu)});
  }
  plan.exceeds_quota =
      machine.limits.quota && machine.limits.quota->cpus < static_cast<double>(plan.lcores.size());
  plan.advice = find_advice(machine, plan, request.node);
  return plan;
}

Idle default_idle(const Plan& plan) {
  if (plan.exceeds_quota) return Idle::sleep;
  const bool ours_alone = std::ranges::all_of(plan.lcores, &Lcore::set_aside);
  return ours_alone ? Idle::spin : Idle::pause;
}

}  // namespace pollen::lcore
