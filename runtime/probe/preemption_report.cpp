#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "pollen/probe/preemption.hpp"

namespace pollen::probe {

namespace {

std::string time_text(std::uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 10'000) return fmt::format("{} ns", ns);
  if (ns < 1'000'000) return fmt::format("{:.1f} us", value / 1e3);
  if (ns < 10'000'000'000) return fmt::format("{:.1f} ms", value / 1e6);
  return fmt::format("{:.1f} s", value / 1e9);
}

std::string count_text(std::uint64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

}  // namespace

PreemptionReport::Causes PreemptionReport::causes() const noexcept {
  Causes causes;
  std::uint64_t rest = lost_ns;
  const auto take = [&rest](std::uint64_t upto) {
    const std::uint64_t part = std::min(rest, upto);
    rest -= part;
    return part;
  };
  causes.other_threads_ns = take(kernel.runqueue_wait_ns.value_or(0));
  causes.steal_ns = take(kernel.steal_ns.value_or(0));
  causes.interrupts_ns = take(kernel.interrupt_ns.value_or(0));
  // Sleeps on purpose are switches too; only where there were none does blocking show in the count.
  if (slept_ns == 0 && kernel.voluntary_switches.value_or(0) > 0) causes.blocked_ns = take(rest);
  causes.unknown_ns = rest;
  return causes;
}

std::string PreemptionReport::explain() const {
  if (watched_ns == 0) return "nothing watched yet";
  const double percent = 100 * static_cast<double>(lost_ns) / static_cast<double>(watched_ns);
  std::string out =
      fmt::format("lost {} of {} ({:.2f} %)", time_text(lost_ns), time_text(watched_ns), percent);
  if (gaps != 0) {
    out += fmt::format(" in {}, the longest {}", count_text(gaps, "gap", "gaps"), time_text(longest_ns));
    if (lost_ns > gap_lost_ns) {
      out += fmt::format(", {} of it in turns under {} or merged", time_text(lost_ns - gap_lost_ns),
                         time_text(gap_threshold_ns));
    }
  }

  const Causes cause = causes();
  std::vector<std::string> parts;
  const auto add = [&parts](std::uint64_t ns, std::string what) {
    if (ns != 0) parts.push_back(fmt::format("{} to {}", time_text(ns), what));
  };
  add(cause.other_threads_ns, fmt::format("other threads on CPU {}", cpu));
  add(cause.steal_ns, "the hypervisor (steal)");
  add(cause.interrupts_ns, "interrupts");
  add(cause.blocked_ns, "blocking calls of the thread itself");
  add(cause.unknown_ns, "what the kernel doesn't account for");
  const char* separator = ": ";
  for (const auto& part : parts) {
    out += separator + part;
    separator = ", ";
  }

  std::vector<std::string> facts;
  if (kernel.involuntary_switches.value_or(0) != 0) {
    facts.push_back(count_text(*kernel.involuntary_switches, "involuntary switch", "involuntary switches"));
  }
  if (kernel.migrations.value_or(0) != 0) {
    facts.push_back(count_text(*kernel.migrations, "migration", "migrations") + " to another CPU");
  }
  if (!kernel.runqueue_wait_ns)
    facts.emplace_back("this kernel doesn't tell how long threads wait for a CPU");
  separator = "; ";
  for (const auto& fact : facts) {
    out += separator + fact;
    separator = ", ";
  }

  if (percent >= 1) {
    const std::uint64_t most = std::max(
        {cause.other_threads_ns, cause.steal_ns, cause.interrupts_ns, cause.blocked_ns, cause.unknown_ns});
    if (most == cause.other_threads_ns) {
      out += fmt::format(
          ". Keep other threads off CPU {} (isolcpus, cpuset), or choose another with --lcores", cpu);
    } else if (most == cause.steal_ns) {
      out += ". Ask for dedicated CPUs in the hypervisor";
    } else if (most == cause.interrupts_ns) {
      out += fmt::format(". Move interrupts off CPU {} (/proc/irq/*/smp_affinity, irqbalance)", cpu);
    } else if (most == cause.blocked_ns) {
      out += ". A worker's callbacks mustn't block";
    }
  }
  return out;
}

}  // namespace pollen::probe
