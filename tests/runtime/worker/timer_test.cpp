#include "pollen/worker/timer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

using namespace pollen::worker;

TEST_SUITE("worker.timer") {
  TEST_CASE("timers run in the order of their times, equal ones in the order they were started") {
    Timers timers;
    std::string order;
    const Timer c = timers.after(0, 30, [&] { order += 'c'; });
    const Timer a = timers.after(0, 10, [&] { order += 'a'; });
    const Timer b = timers.after(0, 20, [&] { order += 'b'; });
    const Timer d = timers.after(5, 25, [&] { order += 'd'; });
    CHECK(timers.next_ns() == 10);
    CHECK(timers.run_due(9) == 0);
    CHECK(timers.run_due(10) == 1);
    CHECK(timers.next_ns() == 20);
    CHECK(timers.run_due(30) == 3);
    CHECK(order == "abcd");
    CHECK(timers.next_ns() == Timers::never_ns);
    CHECK_FALSE(a.active());
  }

  TEST_CASE("a great many timers, some cancelled, run sorted and each once") {
    std::mt19937 random(7);
    Timers timers(4);
    std::vector<Timer> held;
    std::vector<std::uint64_t> ran;
    std::size_t cancelled = 0;
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t due = 1 + random() % 500;
      held.push_back(timers.after(0, due, [&ran, due] { ran.push_back(due); }));
    }
    for (Timer& timer : held)
      if (random() % 3 == 0) {
        timer.cancel();
        ++cancelled;
      }
    CHECK(timers.size() == held.size() - cancelled);
    for (std::uint64_t now = 0; now <= 500; now += 50) {
      timers.run_due(now);
      CHECK((ran.empty() || ran.back() <= now));
    }
    CHECK(ran.size() == held.size() - cancelled);
    CHECK(std::is_sorted(ran.begin(), ran.end()));
  }

  TEST_CASE("a timer that is cancelled or destroyed does not run") {
    Timers timers;
    int runs = 0;
    Timer kept = timers.after(0, 1, [&] { ++runs; });
    {
      const Timer gone = timers.after(0, 1, [&] { ++runs; });
    }
    CHECK(kept.active());
    kept.cancel();
    CHECK_FALSE(kept.active());
    kept.cancel();
    CHECK(timers.run_due(100) == 0);
    CHECK(runs == 0);
  }

  TEST_CASE("a handle of a timer that is over cancels nobody else's") {
    Timers timers;
    int runs = 0;
    Timer first = timers.after(0, 1, [] {});
    timers.run_due(1);
    const Timer second = timers.after(1, 1, [&] { ++runs; });  // in the place of the first
    first.cancel();
    CHECK(second.active());
    timers.run_due(2);
    CHECK(runs == 1);
  }

  TEST_CASE("moving a handle moves the right to cancel") {
    Timers timers;
    int runs = 0;
    Timer target = timers.after(0, 1, [&] { runs += 100; });
    {
      Timer source = timers.after(0, 1, [&] { ++runs; });
      target = std::move(source);
    }
    CHECK(target.active());
    timers.run_due(1);
    CHECK(runs == 1);
  }

  TEST_CASE("a callback may cancel another that is due in the same turn") {
    Timers timers;
    Timer second;
    int runs = 0;
    const Timer first = timers.after(0, 1, [&] { second.cancel(); });
    second = timers.after(0, 2, [&] { ++runs; });
    CHECK(timers.run_due(5) == 1);
    CHECK(runs == 0);
  }

  TEST_CASE("a callback may destroy its own timer and what it holds") {
    Timers timers;
    int runs = 0;
    auto timer = std::make_unique<Timer>();
    const auto token = std::make_shared<int>(41);
    *timer = timers.every(0, 10, [&, token] {
      timer.reset();
      runs = *token + 1;
    });
    CHECK(timers.run_due(10) == 1);
    CHECK(runs == 42);
    CHECK(timers.size() == 0);
    CHECK(token.use_count() == 1);
  }

  TEST_CASE("a callback that starts timers, more than fit the table, runs them in later turns only") {
    Timers timers(1);
    std::vector<Timer> started;
    int runs = 0;
    const Timer first = timers.after(0, 1, [&] {
      for (int i = 0; i < 100; ++i) started.push_back(timers.after(1, 0, [&] { ++runs; }));
    });
    CHECK(timers.run_due(1) == 1);
    CHECK(runs == 0);
    CHECK(timers.run_due(1) == 100);
    CHECK(runs == 100);
  }

  TEST_CASE("a periodic timer keeps to its grid and leaves missed periods out") {
    Timers timers;
    std::vector<std::uint64_t> at;
    std::uint64_t now = 0;
    Timer beat = timers.every(0, 10, [&] { at.push_back(now); });
    for (const std::uint64_t time : {9U, 10U, 19U, 23U, 55U, 59U, 60U}) {
      now = time;
      timers.run_due(now);
    }
    CHECK(at == std::vector<std::uint64_t>{10, 23, 55, 60});
    CHECK(timers.next_ns() == 70);
    beat.cancel();
    CHECK(timers.next_ns() == Timers::never_ns);
  }

  TEST_CASE("a periodic callback can cancel itself") {
    Timers timers;
    Timer beat;
    int runs = 0;
    beat = timers.every(0, 1, [&] {
      if (++runs == 3) beat.cancel();
    });
    for (std::uint64_t now = 1; now < 10; ++now) timers.run_due(now);
    CHECK(runs == 3);
  }

  TEST_CASE("a delay beyond the end of the clock never comes, and does not wrap to now") {
    Timers timers;
    const Timer timer = timers.after(1000, Timers::never_ns, [] {});
    CHECK(timers.next_ns() == Timers::never_ns);
    CHECK(timers.run_due(Timers::never_ns - 1) == 0);
  }

  TEST_CASE("what a callback throws comes out, and the others run in the next call") {
    Timers timers;
    int runs = 0;
    const Timer bad = timers.after(0, 1, [] { throw std::runtime_error("no"); });
    const Timer good = timers.after(0, 2, [&] { ++runs; });
    CHECK_THROWS_AS(timers.run_due(5), std::runtime_error);
    CHECK(timers.run_due(5) == 1);
    CHECK(runs == 1);
  }
}
