#include <doctest/doctest.h>

#include <numeric>

#include "pacer.hpp"
#include "window_log.hpp"

using namespace pollen::bw;

namespace {

constexpr std::uint64_t ms = 1'000'000;

}  // namespace

TEST_CASE("Windows count what completed in each of them, a stall as zeros") {
  WindowLog log;
  log.start(10 * ms);
  log.add(10 * ms, 5);
  log.add(10 * ms + 1, 2);
  log.add(13 * ms, 1);
  const WindowSeries series = log.series(15 * ms);
  CHECK(series.width_ns == ms);
  CHECK(series.messages == std::vector<std::uint64_t>{7, 0, 0, 1, 0});
}

TEST_CASE("The window that is not full is left out") {
  WindowLog log;
  log.start(0);
  log.add(ms / 2, 9);
  CHECK(log.series(ms - 1).messages.empty());
}

TEST_CASE("A long test has longer windows, and none of its messages is lost by it") {
  WindowLog log;
  log.start(0);
  const std::uint64_t windows = 10 * WindowLog::capacity;
  for (std::uint64_t i = 0; i < windows; ++i) log.add(i * ms, 3);
  const WindowSeries series = log.series(windows * ms);
  CHECK(series.width_ns == 16 * ms);
  CHECK(series.messages.size() == windows / 16);
  CHECK(std::accumulate(series.messages.begin(), series.messages.end(), std::uint64_t{0}) == 3 * windows);
  for (const std::uint64_t one : series.messages) CHECK(one == 48);
}

TEST_CASE("Series are widened by merging whole pairs") {
  WindowSeries series{ms, {1, 2, 3, 4, 5, 6, 7}};
  series.widen_to_at_most(2);
  CHECK(series.width_ns == 4 * ms);
  CHECK(series.messages == std::vector<std::uint64_t>{10});
}

TEST_CASE("A pacer lets through its rate, and makes up for no more than a burst") {
  Pacer pacer(1e6, 10);
  pacer.start(0);
  CHECK(pacer.allowed(0) == 10);
  pacer.sent(10);
  CHECK(pacer.allowed(500) == 0);
  CHECK(pacer.allowed(5'000) == 5);
  pacer.sent(5);
  CHECK(pacer.allowed(1'000'000'000) == 10);
}

TEST_CASE("A pacer without a rate is off") { CHECK_FALSE(Pacer(0, 1).active()); }
