#include "pollen/lcore/advice.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <map>

#include "pollen/base/error.hpp"

namespace pollen::lcore {

namespace {

using Found = std::optional<Advice>;
using Kind = Advice::Kind;

std::string_view are(const CpuSet& cpus) { return cpus.size() == 1 ? "is" : "are"; }

Found smt_siblings(const Plan& plan) {
  std::map<unsigned, CpuSet> by_core;
  for (const Lcore& lcore : plan.lcores) by_core[lcore.core].add(lcore.cpu);
  CpuSet keep;
  std::string shared;
  unsigned cores = 0;
  for (const auto& [core, cpus] : by_core) {
    keep.add(*cpus.begin());
    if (cpus.size() == 1) continue;
    constexpr unsigned named = 4;  // a big machine has a hundred such pairs
    if (++cores <= named) shared += fmt::format("{}{}", shared.empty() ? "" : " and ", cpus.list());
  }
  if (cores == 0) return std::nullopt;
  return Advice{Kind::smt_siblings,
                fmt::format("lcores {}{} are threads of one physical core: they slow each other down", shared,
                            cores > 4 ? fmt::format(" and {} more sets", cores - 4) : ""),
                fmt::format("use --lcores {}", keep.list())};
}

Found cpu0(const Machine& machine, const CpuSet& cpus) {
  if (!cpus.contains(0) || machine.limits.allowed.size() == 1) return std::nullopt;
  const CpuSet others = cpus - CpuSet{0};
  const CpuSet instead = others.empty() ? machine.limits.allowed - CpuSet{0} : others;
  return Advice{Kind::cpu0, "lcore 0 is where the kernel does its housekeeping and takes most interrupts",
                fmt::format("leave CPU 0 out: --lcores {}", instead.list())};
}

Found far_node(const Machine& machine, const Plan& plan, std::optional<unsigned> device_node) {
  if (!device_node) return std::nullopt;
  CpuSet far;
  for (const Lcore& lcore : plan.lcores) {
    if (lcore.node != *device_node) far.add(lcore.cpu);
  }
  if (far.empty()) return std::nullopt;
  const CpuSet near = machine.limits.allowed & machine.topology.node_cpus(*device_node);
  return Advice{Kind::far_node,
                fmt::format("{} {} away from NUMA node {}, where the device is", lcores_text(far), are(far),
                            *device_node),
                near.empty() ? fmt::format("allow this process CPUs of node {}: {}", *device_node,
                                           machine.topology.node_cpus(*device_node).list())
                             : fmt::format("choose among node {}'s CPUs: {}", *device_node, near.list())};
}

Found not_isolated(const Machine& machine, const CpuSet& cpus) {
  const CpuSet open = cpus - (machine.isolated | machine.exclusive);
  if (open.empty()) return std::nullopt;
  return Advice{
      Kind::not_isolated,
      fmt::format("{} {} not isolated: the scheduler may run other work there", lcores_text(open), are(open)),
      fmt::format("boot with isolcpus={}", open.list())};
}

Found timer_tick(const Machine& machine, const CpuSet& cpus) {
  const CpuSet ticking = cpus - machine.tickless;
  if (ticking.empty()) return std::nullopt;
  return Advice{Kind::timer_tick,
                fmt::format("{} {} interrupted by the timer tick", lcores_text(ticking), are(ticking)),
                fmt::format("boot with nohz_full={}", ticking.list())};
}

Found governor(const Machine& machine, const CpuSet& cpus) {
  std::map<std::string, CpuSet> slow;
  CpuSet all;
  for (const unsigned cpu : cpus) {
    // Absent where the host or the firmware decides on the frequency.
    const auto name =
        machine.host.read(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", cpu));
    if (!name || name->empty() || *name == "performance") continue;
    slow[*name].add(cpu);
    all.add(cpu);
  }
  if (all.empty()) return std::nullopt;
  std::string text;
  for (const auto& [name, these] : slow) {
    text += fmt::format("{}{} {} under the frequency governor {}", text.empty() ? "" : ", ",
                        lcores_text(these), are(these), name);
  }
  return Advice{Kind::governor, text, fmt::format("cpupower -c {} frequency-set -g performance", all.list())};
}

Found quota(const Machine& machine, const Plan& plan) {
  if (!plan.exceeds_quota) return std::nullopt;
  const Quota& limit = *machine.limits.quota;
  return Advice{
      Kind::quota,
      fmt::format(
          "{} busy-polling worker{} share{} a CPU quota of {} ({}): the kernel will stop them part of "
          "the time",
          plan.lcores.size(), plan.lcores.size() == 1 ? "" : "s", plan.lcores.size() == 1 ? "s" : "",
          limit.cpus, limit.where),
      limit.cpus < 1
          ? "raise the quota to at least one CPU"
          : fmt::format("use at most {} lcores, or raise the quota", static_cast<unsigned>(limit.cpus))};
}

}  // namespace

std::vector<Advice> find_advice(const Machine& machine, const Plan& plan,
                                std::optional<unsigned> device_node) {
  const CpuSet cpus = plan.cpus();
  std::vector<Advice> out;
  for (Found& found :
       std::to_array<Found>({quota(machine, plan), smt_siblings(plan), far_node(machine, plan, device_node),
                             cpu0(machine, cpus), not_isolated(machine, cpus), timer_tick(machine, cpus),
                             governor(machine, cpus)})) {
    if (found) out.push_back(std::move(*found));
  }
  return out;
}

void enforce(const std::vector<Advice>& advice, bool strict) {
  if (!strict || advice.empty()) return;
  std::string why;
  std::string remedy;
  for (const Advice& each : advice) {
    why += (why.empty() ? "" : "; ") + each.text;
    remedy += (remedy.empty() ? "" : "; ") + each.fix;
  }
  throw Error(EPERM, {.attempted = "poll undisturbed, which --strict demands",
                      .why = std::move(why),
                      .remedy = "Drop --strict, or: " + remedy});
}

}  // namespace pollen::lcore
