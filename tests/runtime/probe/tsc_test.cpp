#include "pollen/probe/tsc.hpp"

#include <doctest/doctest.h>

using namespace pollen::probe;

TEST_SUITE("probe.tsc") {
  TEST_CASE("the counter never runs backwards on one thread") {
    std::uint64_t before = now_cycles_ordered();
    for (int i = 0; i < 10'000; ++i) {
      const std::uint64_t now = now_cycles_ordered();
      REQUIRE(now >= before);
      before = now;
    }
  }

  TEST_CASE("the scale agrees with a measurement against the kernel's raw clock") {
    const TscScale& scale = tsc_scale();
    CAPTURE(scale.source());
    CHECK(scale.cycles_per_ns() == doctest::Approx(measured_cycles_per_ns(20'000'000)).epsilon(0.001));
    CHECK_FALSE(scale.source().empty());
  }

  TEST_CASE("cycles and nanoseconds convert into each other, for short and for long times") {
    const TscScale scale(2.5, "test", true);
    CHECK(scale.to_cycles(1000) == 2500);
    CHECK(scale.to_ns(2500) == 1000);
    const std::uint64_t year_ns = std::uint64_t{365} * 86'400 * 1'000'000'000;
    CHECK(scale.to_cycles(year_ns) == year_ns / 2 * 5);
    CHECK(static_cast<double>(scale.to_ns(scale.to_cycles(year_ns))) ==
          doctest::Approx(static_cast<double>(year_ns)).epsilon(1e-9));
    CHECK(scale.ns(5.0) == doctest::Approx(2.0));
  }

  TEST_CASE("a slow counter, as AArch64 has, keeps its precision") {
    const TscScale scale(0.024, "test", true);
    CHECK(scale.to_ns(24'000'000) == doctest::Approx(1e9).epsilon(1e-6));
  }

  TEST_CASE("the cost of a reading is more than nothing and less than a microsecond") {
    CHECK(ordered_reading_cycles() > 0);
    CHECK(tsc_scale().to_ns(ordered_reading_cycles()) < 1000);
  }
}
