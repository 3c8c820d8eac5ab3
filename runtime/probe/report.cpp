#include "pollen/probe/report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace pollen::probe {

using nlohmann::json;

namespace {

json or_null(const std::optional<std::uint64_t>& number) { return number ? json(*number) : json(nullptr); }

}  // namespace

json to_json(const CounterSnapshot& counters) {
  json phases_ns = json::object();
  json shares = json::object();
  for (const Phase phase : phases) {
    phases_ns[std::string(name(phase))] = counters.phase_ns(phase);
    shares[std::string(name(phase))] = counters.share(phase);
  }
  return {{"total_ns", counters.total_ns()},
          {"phase_ns", phases_ns},
          {"phase_share", shares},
          {"turns", counters.turns},
          {"wrs", counters.wrs},
          {"cqes", counters.cqes},
          {"doorbells", counters.doorbells},
          {"bytes_sent", counters.bytes_sent},
          {"bytes_received", counters.bytes_received},
          {"post_ns_per_wr", counters.ns_per_wr()},
          {"poll_ns_per_cqe", counters.ns_per_cqe()},
          {"sampled_wrs", counters.post_sample_wrs},
          {"sampled_cqes", counters.poll_sample_cqes}};
}

json to_json(const PreemptionReport& preemption) {
  const auto causes = preemption.causes();
  return {{"watched_ns", preemption.watched_ns},
          {"slept_ns", preemption.slept_ns},
          {"lost_ns", preemption.lost_ns},
          {"lost_to_ns",
           {{"other_threads", causes.other_threads_ns},
            {"steal", causes.steal_ns},
            {"interrupts", causes.interrupts_ns},
            {"blocked", causes.blocked_ns},
            {"unknown", causes.unknown_ns}}},
          {"gaps", preemption.gaps},
          {"gap_threshold_ns", preemption.gap_threshold_ns},
          {"gap_lost_ns", preemption.gap_lost_ns},
          {"longest_gap_ns", preemption.longest_ns},
          {"long_turns", preemption.long_turns},
          {"long_turn_ns", preemption.long_turn_ns},
          {"cpu", preemption.cpu},
          {"kernel",
           {{"runqueue_wait_ns", or_null(preemption.kernel.runqueue_wait_ns)},
            {"voluntary_switches", or_null(preemption.kernel.voluntary_switches)},
            {"involuntary_switches", or_null(preemption.kernel.involuntary_switches)},
            {"migrations", or_null(preemption.kernel.migrations)},
            {"cpu_steal_ns", or_null(preemption.kernel.steal_ns)},
            {"cpu_interrupt_ns", or_null(preemption.kernel.interrupt_ns)}}},
          {"explanation", preemption.explain()}};
}

json to_json(const HwReading& hardware, const std::string& status) {
  return {{"instructions", or_null(hardware.instructions)},
          {"core_cycles", or_null(hardware.cycles)},
          {"cache_misses", or_null(hardware.cache_misses)},
          {"status", status}};
}

json to_json(const Histogram& histogram, const std::string& unit) {
  json percentiles = json::object();
  for (const char* percent : {"50", "90", "99", "99.9", "99.99"}) {
    percentiles[percent] = histogram.percentile(std::stod(percent));
  }
  return {{"unit", unit},
          {"count", histogram.count()},
          {"min", histogram.min()},
          {"mean", histogram.mean()},
          {"max", histogram.max()},
          {"stddev", histogram.stddev()},
          {"percentiles", percentiles}};
}

json to_json(const RateSeries& series) {
  return {{"windows", series.windows}, {"min", series.min}, {"mean", series.mean}, {"max", series.max}};
}

json to_json(const LcoreReport& report) {
  return {{"lcore", report.lcore},
          {"counters", to_json(report.counters)},
          {"preemption", report.preemption ? to_json(*report.preemption) : json(nullptr)},
          {"hardware", to_json(report.hardware, report.hardware_status)}};
}

std::string table_header() {
  return fmt::format("{:>5} {:>13} {:>13} {:>9} {:>9} {:>7} {:>7} {:>8} {:>9} {:>7} {:>7} {:>9} {:>8} {:>12}",
                     "lcore", "WRs", "CQEs", "ns/WR", "ns/CQE", "post[%]", "poll[%]", "empty[%]", "device[%]",
                     "app[%]", "idle[%]", "lost[ms]", "lost[%]", "longest[us]");
}

std::string table_row(const LcoreReport& report) {
  const auto percent = [&](Phase phase) { return 100 * report.counters.share(phase); };
  std::string row = fmt::format(
      "{:>5} {:>13} {:>13} {:>9.1f} {:>9.1f} {:>7.1f} {:>7.1f} {:>8.1f} {:>9.1f} {:>7.1f} {:>7.1f}",
      report.lcore, report.counters.wrs, report.counters.cqes, report.counters.ns_per_wr(),
      report.counters.ns_per_cqe(), percent(Phase::post), percent(Phase::poll_productive),
      percent(Phase::poll_empty), percent(Phase::device), percent(Phase::app), percent(Phase::idle));
  if (!report.preemption) return row + fmt::format(" {:>9} {:>8} {:>12}", "-", "-", "-");
  const auto& lost = *report.preemption;
  const double share =
      lost.watched_ns == 0 ? 0 : static_cast<double>(lost.lost_ns) / static_cast<double>(lost.watched_ns);
  return row + fmt::format(" {:>9.3f} {:>8.2f} {:>12.1f}", static_cast<double>(lost.lost_ns) / 1e6,
                           100 * share, static_cast<double>(lost.longest_ns) / 1e3);
}

}  // namespace pollen::probe
