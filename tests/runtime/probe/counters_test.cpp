#include "pollen/probe/counters.hpp"

#include <doctest/doctest.h>

#include <thread>

#include "pollen/probe/turn_timer.hpp"

using namespace pollen::probe;

namespace {

void spin(std::uint64_t cycles) {
  const std::uint64_t start = now_cycles();
  while (now_cycles() - start < cycles) {
  }
}

}  // namespace

TEST_SUITE("probe.counters") {
  TEST_CASE("a snapshot holds every counter, and a difference of two what lies between them") {
    LcoreCounters counters;
    const auto fill = [&counters](std::uint64_t n) {
      for (const Phase phase : phases) counters.cycles(phase).add(n++);
      for (Counter* counter :
           {&counters.total_cycles, &counters.turns, &counters.wrs, &counters.cqes, &counters.doorbells,
            &counters.bytes_sent, &counters.bytes_received, &counters.post_sample_cycles,
            &counters.post_sample_wrs, &counters.poll_sample_cycles, &counters.poll_sample_cqes}) {
        counter->add(n++);
      }
    };
    fill(100);
    const CounterSnapshot first = counters.snapshot();
    fill(1000);
    const CounterSnapshot between = counters.snapshot() - first;
    CHECK(first.cycles(Phase::post) == 100);
    CHECK(first.cycles(Phase::idle) == 105);
    CHECK(first.total_cycles == 106);
    CHECK(first.poll_sample_cqes == 116);
    CHECK(between.cycles(Phase::post) == 1000);
    CHECK(between.turns == 1007);
    CHECK(between.wrs == 1008);
    CHECK(between.cqes == 1009);
    CHECK(between.doorbells == 1010);
    CHECK(between.bytes_sent == 1011);
    CHECK(between.bytes_received == 1012);
    CHECK(between.poll_sample_cqes == 1016);

    CounterSnapshot sum = first;
    sum += between;
    CHECK(sum.wrs == counters.snapshot().wrs);
    CHECK(sum.cycles(Phase::app) == counters.snapshot().cycles(Phase::app));
  }

  TEST_CASE("shares add up to one, and phases to the exact total") {
    CounterSnapshot snapshot;
    snapshot.total_cycles = 1'000'000;
    snapshot.cycles(Phase::post) = 30;
    snapshot.cycles(Phase::poll_productive) = 50;
    snapshot.cycles(Phase::idle) = 20;
    CHECK(snapshot.share(Phase::post) == doctest::Approx(0.3));
    CHECK(snapshot.share(Phase::app) == 0);
    double sum_ns = 0;
    for (const Phase phase : phases) sum_ns += snapshot.phase_ns(phase);
    CHECK(sum_ns == doctest::Approx(snapshot.total_ns()));
  }

  TEST_CASE("costs per WR and per CQE come from the samples, and are 0 without any") {
    CounterSnapshot snapshot;
    CHECK(snapshot.ns_per_wr() == 0);
    CHECK(snapshot.ns_per_cqe() == 0);
    CHECK(snapshot.share(Phase::post) == 0);
    snapshot.post_sample_cycles = tsc_scale().to_cycles(6'000'000);
    snapshot.post_sample_wrs = 1'000'000;
    snapshot.poll_sample_cycles = tsc_scale().to_cycles(4'000'000);
    snapshot.poll_sample_cqes = 500'000;
    CHECK(snapshot.ns_per_wr() == doctest::Approx(6.0).epsilon(0.001));
    CHECK(snapshot.ns_per_cqe() == doctest::Approx(8.0).epsilon(0.001));
  }

  TEST_CASE("two lcores' counters share no cache line") {
    static_assert(alignof(LcoreCounters) >= 64);
    static_assert(sizeof(LcoreCounters) % alignof(LcoreCounters) == 0);
  }

  TEST_CASE("a reader on another thread sees counters that only grow") {
    LcoreCounters counters;
    std::atomic<bool> done{false};
    bool grew = true;
    std::thread reader([&] {
      CounterSnapshot before;
      while (!done.load()) {
        const CounterSnapshot now = counters.snapshot();
        grew = grew && now.wrs >= before.wrs && now.bytes_sent >= before.bytes_sent;
        before = now;
      }
    });
    for (int i = 0; i < 200'000; ++i) {
      counters.wrs.add(1);
      counters.bytes_sent.add(64);
    }
    done = true;
    reader.join();
    CHECK(grew);
    CHECK(counters.snapshot().wrs == 200'000);
    CHECK(counters.snapshot().bytes_sent == 200'000 * 64);
  }
}

TEST_SUITE("probe.turn_timer") {
  TEST_CASE("one turn in a period is timed, and counts for all of them") {
    LcoreCounters counters;
    TurnTimer timer(counters, 10);
    int timed = 0;
    for (int i = 0; i < 100; ++i) {
      timer.begin_turn(now_cycles());
      timed += timer.timed() ? 1 : 0;
      timer.lap(Phase::app);
    }
    CHECK(timed == 10);
    CHECK(counters.turns.get() == 100);
  }

  TEST_CASE("time goes to the phase in which it was spent") {
    LcoreCounters counters;
    TurnTimer timer(counters, 1);
    for (int i = 0; i < 200; ++i) {
      timer.begin_turn(now_cycles());
      spin(3000);
      timer.lap_poll(4);
      spin(1000);
      timer.lap_post(2);
    }
    const CounterSnapshot snapshot = counters.snapshot();
    // Each lap lasts at least as long as its spin, whatever else happens on this CPU.
    CHECK(snapshot.cycles(Phase::poll_productive) >= std::uint64_t{200} * 2900);
    CHECK(snapshot.cycles(Phase::post) >= std::uint64_t{200} * 900);
    CHECK(snapshot.cycles(Phase::poll_empty) == 0);
    CHECK(snapshot.cycles(Phase::app) == 0);
    CHECK(snapshot.poll_sample_cqes > 0);
    CHECK(snapshot.poll_sample_cqes <= 800);
    CHECK(snapshot.poll_sample_cycles >= snapshot.poll_sample_cqes / 4 * 2900);
    CHECK(snapshot.post_sample_cycles >= snapshot.post_sample_wrs / 2 * 900);
  }

  TEST_CASE("an empty poll is accounted apart from a productive one, and gives no cost per CQE") {
    LcoreCounters counters;
    TurnTimer timer(counters, 1);
    timer.begin_turn(now_cycles());
    spin(2000);
    timer.lap_poll(0);
    timer.lap_post(0);
    const CounterSnapshot snapshot = counters.snapshot();
    CHECK(snapshot.cycles(Phase::poll_empty) >= 1900);
    CHECK(snapshot.cycles(Phase::poll_productive) == 0);
    CHECK(snapshot.poll_sample_cqes == 0);
    CHECK(snapshot.post_sample_wrs == 0);
  }

  TEST_CASE("what is left of a timed turn is idle time") {
    LcoreCounters counters;
    TurnTimer timer(counters, 1);
    timer.begin_turn(now_cycles());
    timer.lap(Phase::app);
    spin(5000);
    timer.begin_turn(now_cycles());
    CHECK(counters.snapshot().cycles(Phase::idle) >= 4900);
  }

  TEST_CASE("a sample that was preempted doesn't spoil the cost per WR") {
    LcoreCounters counters;
    TurnTimer timer(counters, 1);
    timer.begin_turn(now_cycles());
    spin(tsc_scale().to_cycles(50'000));
    timer.lap_post(1);
    CHECK(counters.snapshot().post_sample_wrs == 0);
    CHECK(counters.snapshot().cycles(Phase::post) > 0);
  }

  TEST_CASE("the total runs from the first turn to the last") {
    LcoreCounters counters;
    TurnTimer timer(counters);
    timer.begin_turn(1'000'000);
    timer.begin_turn(1'500'000);
    timer.begin_turn(3'000'000);
    CHECK(counters.snapshot().total_cycles == 2'000'000);
  }
}
