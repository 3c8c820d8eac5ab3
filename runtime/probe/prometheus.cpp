#include "pollen/probe/prometheus.hpp"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

namespace pollen::probe {

namespace {

constexpr double second_ns = 1e9;

class Writer {
 public:
  explicit Writer(std::span<const LcoreReport> reports) : reports_(reports) {}

  // samples(report, sample) calls sample(more labels, value) for each line of one lcore.
  template <class Samples>
  void metric(std::string_view metric_name, std::string_view type, std::string_view help, Samples samples) {
    bool announced = false;
    for (const LcoreReport& report : reports_) {
      samples(report, [&](std::string_view labels, auto value) {
        if (!announced) {
          fmt::format_to(std::back_inserter(out_), "# HELP {0} {1}\n# TYPE {0} {2}\n", metric_name, help,
                         type);
          announced = true;
        }
        fmt::format_to(std::back_inserter(out_), "{}{{lcore=\"{}\"{}{}}} {}\n", metric_name, report.lcore,
                       labels.empty() ? "" : ",", labels, value);
      });
    }
  }

  template <class Number>
  void counter(std::string_view metric_name, std::string_view help, Number number) {
    metric(metric_name, "counter", help,
           [&](const LcoreReport& report, auto sample) { sample("", number(report.counters)); });
  }

  std::string take() { return std::move(out_); }

 private:
  std::span<const LcoreReport> reports_;
  std::string out_;
};

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / second_ns; }

}  // namespace

std::string prometheus_text(std::span<const LcoreReport> reports) {
  Writer writer(reports);
  writer.metric("pollen_lcore_phase_seconds_total", "counter", "Time spent per phase of the loop.",
                [](const LcoreReport& report, auto sample) {
                  for (const Phase phase : phases) {
                    sample(fmt::format("phase=\"{}\"", name(phase)),
                           report.counters.phase_ns(phase) / second_ns);
                  }
                });
  writer.counter("pollen_lcore_turns_total", "Turns of the loop.", [](const auto& c) { return c.turns; });
  writer.counter("pollen_lcore_wrs_total", "Work requests posted.", [](const auto& c) { return c.wrs; });
  writer.counter("pollen_lcore_cqes_total", "Completions polled.", [](const auto& c) { return c.cqes; });
  writer.counter("pollen_lcore_doorbells_total", "Doorbells rung.",
                 [](const auto& c) { return c.doorbells; });
  writer.counter("pollen_lcore_sent_bytes_total", "Payload sent.",
                 [](const auto& c) { return c.bytes_sent; });
  writer.counter("pollen_lcore_received_bytes_total", "Payload received.",
                 [](const auto& c) { return c.bytes_received; });
  writer.metric(
      "pollen_lcore_post_seconds_per_wr", "gauge", "Mean cost of posting one work request.",
      [](const LcoreReport& report, auto sample) { sample("", report.counters.ns_per_wr() / second_ns); });
  writer.metric(
      "pollen_lcore_poll_seconds_per_cqe", "gauge", "Mean cost of polling one completion.",
      [](const LcoreReport& report, auto sample) { sample("", report.counters.ns_per_cqe() / second_ns); });

  writer.metric("pollen_lcore_lost_seconds_total", "counter", "Time without the CPU, by what took it.",
                [](const LcoreReport& report, auto sample) {
                  if (!report.preemption) return;
                  const auto causes = report.preemption->causes();
                  sample("cause=\"other_threads\"", seconds(causes.other_threads_ns));
                  sample("cause=\"steal\"", seconds(causes.steal_ns));
                  sample("cause=\"interrupts\"", seconds(causes.interrupts_ns));
                  sample("cause=\"blocked\"", seconds(causes.blocked_ns));
                  sample("cause=\"unknown\"", seconds(causes.unknown_ns));
                });
  writer.metric("pollen_lcore_gaps_total", "counter", "Turns that lost a noticeable part of their time.",
                [](const LcoreReport& report, auto sample) {
                  if (report.preemption) sample("", report.preemption->gaps);
                });
  writer.metric("pollen_lcore_longest_gap_seconds", "gauge", "The most that one turn lost.",
                [](const LcoreReport& report, auto sample) {
                  if (report.preemption) sample("", seconds(report.preemption->longest_ns));
                });

  writer.metric("pollen_lcore_instructions_total", "counter", "Instructions retired in user space.",
                [](const LcoreReport& report, auto sample) {
                  if (report.hardware.instructions) sample("", *report.hardware.instructions);
                });
  writer.metric("pollen_lcore_core_cycles_total", "counter", "Cycles of the core's clock in user space.",
                [](const LcoreReport& report, auto sample) {
                  if (report.hardware.cycles) sample("", *report.hardware.cycles);
                });
  writer.metric("pollen_lcore_cache_misses_total", "counter", "Last-level cache misses in user space.",
                [](const LcoreReport& report, auto sample) {
                  if (report.hardware.cache_misses) sample("", *report.hardware.cache_misses);
                });
  return writer.take();
}

}  // namespace pollen::probe
