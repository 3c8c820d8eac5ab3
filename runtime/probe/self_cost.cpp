#include "pollen/probe/self_cost.hpp"

#include <algorithm>
#include <limits>

#include "pollen/probe/preemption.hpp"
#include "pollen/probe/turn_timer.hpp"

namespace pollen::probe {

namespace {

constexpr int turns = 200'000;

// The least of several runs: what others do to this CPU in the meantime is not the probe's cost.
template <class Turn>
double least_ns_per_turn(Turn turn) {
  double least = std::numeric_limits<double>::max();
  for (int run = 0; run < 9; ++run) {
    const std::uint64_t start = now_cycles_ordered();
    for (int i = 0; i < turns; ++i) {
      turn(now_cycles());
      __asm__ volatile("" ::: "memory");
    }
    const double ns = tsc_scale().ns(static_cast<double>(now_cycles_ordered() - start));
    least = std::min(least, ns / turns);
  }
  return least;
}

}  // namespace

SelfCost measure_self_cost() {
  LcoreCounters counters;
  TurnTimer timer(counters);
  PreemptionDetector detector;

  const double bare = least_ns_per_turn([](std::uint64_t now) { __asm__ volatile("" ::"r"(now)); });
  const double probed = least_ns_per_turn([&](std::uint64_t now) {
    detector.turn(now);
    timer.begin_turn(now);
    timer.lap_poll(1);
    counters.cqes.add(1);
    counters.bytes_received.add(64);
    timer.lap(Phase::app);
    counters.wrs.add(1);
    counters.bytes_sent.add(64);
    counters.doorbells.add(1);
    timer.lap_post(1);
  });
  return {.turn_ns = std::max(probed - bare, 0.0), .reading_ns = detector.reading_cost_ns()};
}

}  // namespace pollen::probe
