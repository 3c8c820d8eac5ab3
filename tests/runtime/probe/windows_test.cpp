#include "pollen/probe/windows.hpp"

#include <doctest/doctest.h>

using pollen::probe::RateWindows;

TEST_SUITE("probe.windows") {
  TEST_CASE("each window's rate is per second, and minimum, mean and maximum are over windows") {
    RateWindows windows(1'000'000);  // 1 ms
    windows.start(0);
    windows.add(100'000, 1000, 1);
    windows.add(900'000, 1000, 1);    // first window: 2000 bytes
    windows.add(1'000'000, 6000, 3);  // second
    windows.add(2'500'000, 1000, 1);  // third
    windows.advance(3'000'000);
    const auto bytes = windows.bytes_per_second();
    CHECK(bytes.windows == 3);
    CHECK(bytes.min == doctest::Approx(1e6));
    CHECK(bytes.mean == doctest::Approx(3e6));
    CHECK(bytes.max == doctest::Approx(6e6));
    CHECK(bytes.last == doctest::Approx(1e6));
    const auto messages = windows.messages_per_second();
    CHECK(messages.min == doctest::Approx(1e3));
    CHECK(messages.mean == doctest::Approx(2e3));
    CHECK(messages.max == doctest::Approx(3e3));
  }

  TEST_CASE("a stall is a window with rate 0, however many windows it lasts") {
    RateWindows windows(1000);
    windows.start(5);
    windows.add(10, 100, 1);
    windows.add(std::uint64_t{1000} * 1'000'000 + 5, 100, 1);
    const auto bytes = windows.bytes_per_second();
    CHECK(bytes.windows == 1'000'000);
    CHECK(bytes.min == 0);
    CHECK(bytes.last == 0);
    CHECK(bytes.max == doctest::Approx(100 * 1e6));
    CHECK(bytes.mean == doctest::Approx(100.0));
  }

  TEST_CASE("a partial window is not counted") {
    RateWindows windows(1000);
    windows.add(500, 100, 1);
    windows.add(1499, 100, 1);
    CHECK(windows.bytes_per_second().windows == 0);
    CHECK(windows.bytes_per_second().max == 0);
    windows.advance(1500);
    CHECK(windows.bytes_per_second().windows == 1);
    CHECK(windows.bytes_per_second().min == doctest::Approx(200 * 1e6));
  }

  TEST_CASE("a time before the window's start counts for the open window") {
    RateWindows windows(1000);
    windows.start(5000);
    windows.add(10, 7, 1);
    windows.advance(6000);
    CHECK(windows.bytes_per_second().max == doctest::Approx(7 * 1e6));
  }
}
