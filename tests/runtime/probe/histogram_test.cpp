#include "pollen/probe/histogram.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

using pollen::probe::Histogram;

TEST_SUITE("probe.histogram") {
  TEST_CASE("an empty histogram is all zeros") {
    const Histogram histogram;
    CHECK(histogram.count() == 0);
    CHECK(histogram.min() == 0);
    CHECK(histogram.max() == 0);
    CHECK(histogram.mean() == 0);
    CHECK(histogram.stddev() == 0);
    CHECK(histogram.percentile(50) == 0);
  }

  TEST_CASE("values below 256 are kept exactly") {
    for (std::uint64_t value = 0; value < 256; ++value) {
      Histogram histogram;
      for (const std::uint64_t each : {std::uint64_t{0}, value, std::uint64_t{300}}) histogram.record(each);
      REQUIRE(histogram.percentile(50) == value);
    }
  }

  TEST_CASE("each percentile is within the stated error of the exact one, over the whole range") {
    std::mt19937_64 random(11);
    std::vector<std::uint64_t> values;
    Histogram histogram;
    for (int i = 0; i < 100'000; ++i) {
      const std::uint64_t value = random() >> (random() % 64);
      values.push_back(value);
      histogram.record(value);
    }
    std::sort(values.begin(), values.end());
    for (const double percent : {0.0, 0.1, 1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0}) {
      CAPTURE(percent);
      const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * 100'000));
      const auto exact = static_cast<double>(values[rank == 0 ? 0 : rank - 1]);
      const auto found = static_cast<double>(histogram.percentile(percent));
      CHECK(std::abs(found - exact) <= exact * Histogram::relative_error + 1e-9);
    }
    CHECK(histogram.min() == values.front());
    CHECK(histogram.max() == values.back());
    CHECK(histogram.count() == values.size());
  }

  TEST_CASE("every power of two and its neighbours land within the stated error") {
    for (unsigned shift = 1; shift < 64; ++shift) {
      for (const std::int64_t offset : {-1, 0, 1}) {
        const std::uint64_t value = (std::uint64_t{1} << shift) + static_cast<std::uint64_t>(offset);
        Histogram histogram;
        histogram.record(0);
        histogram.record(value);
        histogram.record(~std::uint64_t{0});
        const auto found = static_cast<double>(histogram.percentile(50));
        REQUIRE(std::abs(found - static_cast<double>(value)) <=
                static_cast<double>(value) * Histogram::relative_error);
      }
    }
  }

  TEST_CASE("mean and standard deviation are exact where a sum of squares is not") {
    Histogram histogram;
    const std::uint64_t base = std::uint64_t{1} << 40;
    for (int i = 0; i < 1000; ++i) histogram.record(base + (i % 2 == 0 ? 0U : 2U));
    CHECK(histogram.mean() - static_cast<double>(base) == doctest::Approx(1.0).epsilon(1e-3));
    CHECK(histogram.stddev() == doctest::Approx(1.0).epsilon(1e-3));
  }

  TEST_CASE("merging two histograms gives that of all values") {
    std::mt19937_64 random(5);
    Histogram all;
    Histogram left;
    Histogram right;
    for (int i = 0; i < 20'000; ++i) {
      const std::uint64_t value = random() % (i % 3 == 0 ? 1'000'000U : 500U);
      all.record(value);
      (i % 3 == 0 ? left : right).record(value);
    }
    left.merge(right);
    left.merge(Histogram{});
    CHECK(left.count() == all.count());
    CHECK(left.min() == all.min());
    CHECK(left.max() == all.max());
    CHECK(left.mean() == doctest::Approx(all.mean()).epsilon(1e-9));
    CHECK(left.stddev() == doctest::Approx(all.stddev()).epsilon(1e-9));
    for (const double percent : {1.0, 50.0, 90.0, 99.0})
      CHECK(left.percentile(percent) == all.percentile(percent));

    Histogram empty;
    empty.merge(all);
    CHECK(empty.min() == all.min());
    CHECK(empty.mean() == doctest::Approx(all.mean()));
  }

  TEST_CASE("a reset histogram is as new") {
    Histogram histogram;
    histogram.record(77);
    histogram.reset();
    CHECK(histogram.count() == 0);
    histogram.record(5);
    CHECK(histogram.min() == 5);
    CHECK(histogram.max() == 5);
    CHECK(histogram.percentile(50) == 5);
    CHECK(histogram.mean() == 5);
  }
}
