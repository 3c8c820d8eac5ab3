#include "pollen/probe/hw_counters.hpp"

#include <doctest/doctest.h>
#include <linux/perf_event.h>
#include <time.h>

using namespace pollen::probe;

TEST_SUITE("probe.hw_counters") {
  TEST_CASE("hardware counters count, or say plainly why not") {
    const HwCounters counters;
    const HwReading before = counters.read();
    volatile std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < 100'000; ++i) sum = sum + i;
    const HwReading between = counters.read() - before;
    CAPTURE(counters.status());
    if (between.instructions) {
      CHECK(*between.instructions > 100'000);
      CHECK(counters.status().starts_with("instructions"));
      const HwReading fast = counters.read_fast();
      CHECK(fast.instructions.has_value());
    } else {
      CHECK(counters.status().find("not available: ") != std::string::npos);
      MESSAGE(counters.status());
    }
  }

  TEST_CASE("an event that the kernel has counts this thread") {
    // Software events exist everywhere that perf events do, so that reading is tested without a PMU.
    const PerfEvent clock(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK);
    if (!clock.available()) {
      MESSAGE("skipped: " << clock.why_not());
      CHECK_FALSE(clock.why_not().empty());
      return;
    }
    const auto before = clock.read();
    REQUIRE(before.has_value());
    volatile std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < 3'000'000; ++i) sum = sum + i;
    const auto after = clock.read();
    REQUIRE(after.has_value());
    CHECK(*after > *before);
    // Without a hardware counter behind it the fast way falls back to the slow one.
    const auto fast = clock.read_fast();
    REQUIRE(fast.has_value());
    CHECK(*fast >= *after);
  }

  TEST_CASE("an event that doesn't exist is refused with a reason") {
    const PerfEvent event(PERF_TYPE_SOFTWARE, 0xffff);
    CHECK_FALSE(event.available());
    CHECK_FALSE(event.why_not().empty());
    CHECK_FALSE(event.read().has_value());
    CHECK_FALSE(event.read_fast().has_value());
    CHECK_FALSE(event.fast());
  }

  TEST_CASE("a difference is absent where either reading is") {
    const HwReading later{.instructions = 10, .cycles = 20, .cache_misses = {}};
    const HwReading earlier{.instructions = 4, .cycles = {}, .cache_misses = 1};
    const HwReading between = later - earlier;
    CHECK(between.instructions == 6);
    CHECK_FALSE(between.cycles.has_value());
    CHECK_FALSE(between.cache_misses.has_value());
  }
}
