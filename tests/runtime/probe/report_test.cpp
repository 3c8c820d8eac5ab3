#include "pollen/probe/report.hpp"

#include <doctest/doctest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "pollen/probe/prometheus.hpp"
#include "pollen/probe/self_cost.hpp"

using namespace pollen::probe;

namespace {

LcoreReport sample_report() {
  LcoreReport report;
  report.lcore = 3;
  report.counters.total_cycles = tsc_scale().to_cycles(2'000'000'000);
  report.counters.cycles(Phase::post) = 25;
  report.counters.cycles(Phase::poll_productive) = 75;
  report.counters.turns = 10;
  report.counters.wrs = 1'000'000;
  report.counters.cqes = 31'250;
  report.counters.doorbells = 31'250;
  report.counters.bytes_sent = 64'000'000;
  report.counters.post_sample_cycles = tsc_scale().to_cycles(5'000'000);
  report.counters.post_sample_wrs = 1'000'000;
  PreemptionReport preemption;
  preemption.watched_ns = 2'000'000'000;
  preemption.lost_ns = 50'000'000;
  preemption.gaps = 12;
  preemption.gap_lost_ns = 50'000'000;
  preemption.longest_ns = 4'000'000;
  preemption.cpu = 3;
  preemption.kernel.runqueue_wait_ns = 49'000'000;
  report.preemption = preemption;
  report.hardware.instructions = 123;
  report.hardware_status = "instructions; cycles, cache misses not available: test";
  return report;
}

std::size_t words(const std::string& line) {
  std::istringstream stream(line);
  std::size_t count = 0;
  for (std::string word; stream >> word;) ++count;
  return count;
}

}  // namespace

TEST_SUITE("probe.report") {
  TEST_CASE("JSON names every unit, and what is missing is null") {
    const auto json = to_json(sample_report());
    CHECK(json["lcore"] == 3);
    CHECK(json["counters"]["wrs"] == 1'000'000);
    CHECK(json["counters"]["post_ns_per_wr"].get<double>() == doctest::Approx(5.0).epsilon(0.001));
    CHECK(json["counters"]["poll_ns_per_cqe"] == 0.0);
    CHECK(json["counters"]["phase_share"]["post"].get<double>() == doctest::Approx(0.25));
    CHECK(json["counters"]["phase_ns"]["poll_productive"].get<double>() ==
          doctest::Approx(1.5e9).epsilon(0.001));
    CHECK(json["preemption"]["lost_ns"] == 50'000'000);
    CHECK(json["preemption"]["lost_to_ns"]["other_threads"] == 49'000'000);
    CHECK(json["preemption"]["lost_to_ns"]["unknown"] == 1'000'000);
    CHECK(json["preemption"]["kernel"]["migrations"].is_null());
    CHECK(json["preemption"]["explanation"].get<std::string>().starts_with(
        "lost 50.0 ms of 2000.0 ms (2.50 %)"));
    CHECK(json["hardware"]["instructions"] == 123);
    CHECK(json["hardware"]["cache_misses"].is_null());
    CHECK(json["hardware"]["status"].get<std::string>().find("not available") != std::string::npos);

    LcoreReport bare;
    CHECK(to_json(bare)["preemption"].is_null());
  }

  TEST_CASE("a histogram's JSON carries its unit and percentiles") {
    Histogram histogram;
    for (std::uint64_t i = 1; i <= 100; ++i) histogram.record(i);
    const auto json = to_json(histogram, "ns");
    CHECK(json["unit"] == "ns");
    CHECK(json["count"] == 100);
    CHECK(json["percentiles"]["50"] == 50);
    CHECK(json["percentiles"]["99"] == 99);
    CHECK(json["max"] == 100);
    CHECK(json["mean"] == doctest::Approx(50.5));
  }

  TEST_CASE("a series' JSON carries minimum, mean and maximum") {
    const auto json = to_json(RateSeries{.windows = 3, .min = 1, .mean = 2, .max = 3, .last = 1});
    CHECK(json["windows"] == 3);
    CHECK(json["min"] == 1.0);
    CHECK(json["max"] == 3.0);
  }

  TEST_CASE("a row has a cell under each title, with or without preemption") {
    LcoreReport report = sample_report();
    const std::string row = table_row(report);
    CHECK(row.size() == table_header().size());
    CHECK(words(row) == words(table_header()));
    CHECK(row.find(" 5.0 ") != std::string::npos);
    CHECK(row.find(" 50.000 ") != std::string::npos);
    CHECK(row.find(" 2.50 ") != std::string::npos);
    report.preemption.reset();
    CHECK(table_row(report).size() == table_header().size());
    CHECK(words(table_row(report)) == words(table_header()));
  }
}

TEST_SUITE("probe.prometheus") {
  TEST_CASE("each metric is announced once and has a line per lcore") {
    std::array<LcoreReport, 2> reports{sample_report(), sample_report()};
    reports[1].lcore = 7;
    const std::string text = prometheus_text(reports);
    CHECK(text.find("# TYPE pollen_lcore_wrs_total counter\n"
                    "pollen_lcore_wrs_total{lcore=\"3\"} 1000000\n"
                    "pollen_lcore_wrs_total{lcore=\"7\"} 1000000\n") != std::string::npos);
    CHECK(text.find("pollen_lcore_lost_seconds_total{lcore=\"3\",cause=\"other_threads\"} 0.049\n") !=
          std::string::npos);
    CHECK(text.find("pollen_lcore_phase_seconds_total{lcore=\"3\",phase=\"idle\"} 0") != std::string::npos);
    CHECK(text.find("pollen_lcore_instructions_total{lcore=\"3\"} 123\n") != std::string::npos);
    // Absent numbers give neither a sample nor an announcement.
    CHECK(text.find("pollen_lcore_cache_misses_total") == std::string::npos);
  }

  TEST_CASE("every line is a comment or a sample, and every sample's metric was announced") {
    const std::array reports{sample_report()};
    std::istringstream lines(prometheus_text(reports));
    std::string announced;
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      if (line.starts_with("# HELP ")) continue;
      if (line.starts_with("# TYPE ")) {
        announced = line.substr(7, line.find(' ', 7) - 7);
        continue;
      }
      const auto brace = line.find('{');
      REQUIRE(brace != std::string::npos);
      CHECK(line.substr(0, brace) == announced);
      const auto value = line.substr(line.find("} ") + 2);
      std::size_t used = 0;
      CHECK(std::stod(value, &used) >= 0);
      CHECK(used == value.size());
    }
  }

  TEST_CASE("no lcores give no text") { CHECK(prometheus_text({}).empty()); }
}

TEST_SUITE("probe.self_cost") {
  TEST_CASE("the probe measures itself") {
    const SelfCost cost = measure_self_cost();
    MESSAGE("probe: " << cost.turn_ns << " ns per turn, " << cost.reading_ns << " ns per look at the clocks");
    CHECK(cost.turn_ns >= 0);
    CHECK(cost.reading_ns > 0);
  }
}
