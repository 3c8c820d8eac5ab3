// Finds out where the turns of a loop spend their time, by timing one turn in many.
//
// A TSC read costs about as much as posting a WR, so that timing every phase of every turn would
// measure itself. One turn in `period` is timed phase by phase and counts for all of them; in the
// others a lap is one predicted branch. The period is prime, lest it beats with what the loop
// does every 2^n turns.
//
//   timer.begin_turn(now);                    // now: the loop's one TSC read per turn
//   n = cq.poll(…);     timer.lap_poll(n);
//   handlers(…);        timer.lap(Phase::app);
//   flush(…);           timer.lap_post(wrs);
//
// A lap accounts the time since the lap before it, or since begin_turn. What is left of a timed
// turn when the next one begins is idle time.
//
// Units: cycles. Ownership: writes to counters that must outlive it. Thread rules: owner only.
#pragma once

#include "pollen/probe/counters.hpp"

namespace pollen::probe {

inline constexpr std::uint32_t default_timing_period = 127;

class TurnTimer {
 public:
  // period 1 times every turn.
  explicit TurnTimer(LcoreCounters& counters, std::uint32_t period = default_timing_period)
      : counters_(counters),
        period_(period == 0 ? 1 : period),
        until_timed_(period_),
        reading_cycles_(ordered_reading_cycles()),
        ceiling_cycles_(tsc_scale().to_cycles(20'000)) {}

  void begin_turn(std::uint64_t now) noexcept {
    if (timed_) [[unlikely]]
      end_timed_turn();
    if (first_ == 0) [[unlikely]]
      first_ = now;
    counters_.turns.add(1);
    counters_.total_cycles.set(now - first_);
    if (--until_timed_ == 0) [[unlikely]] {
      until_timed_ = period_;
      timed_ = true;
      mark_ = now_cycles_ordered();
    }
  }

  void lap(Phase phase) noexcept {
    if (timed_) [[unlikely]]
      account(phase);
  }

  void lap_post(std::uint64_t wrs) noexcept {
    if (!timed_) [[likely]]
      return;
    const std::uint64_t cycles = account(Phase::post);
    if (wrs == 0 || cycles > ceiling_cycles_) return;
    counters_.post_sample_cycles.add(cycles);
    counters_.post_sample_wrs.add(wrs);
  }

  void lap_poll(std::uint64_t cqes) noexcept {
    if (!timed_) [[likely]]
      return;
    const std::uint64_t cycles = account(cqes == 0 ? Phase::poll_empty : Phase::poll_productive);
    // Nothing polls one CQE for 20 µs: such a sample was preempted, and would outweigh all others.
    if (cqes == 0 || cycles > ceiling_cycles_) return;
    counters_.poll_sample_cycles.add(cycles);
    counters_.poll_sample_cqes.add(cqes);
  }

  bool timed() const noexcept { return timed_; }

 private:
  std::uint64_t account(Phase phase) noexcept {
    const std::uint64_t now = now_cycles_ordered();
    const std::uint64_t gross = now - mark_;
    const std::uint64_t cycles = gross > reading_cycles_ ? gross - reading_cycles_ : 0;
    mark_ = now;
    counters_.cycles(phase).add(cycles * period_);
    return cycles;
  }

  void end_timed_turn() noexcept {
    account(Phase::idle);
    timed_ = false;
  }

  LcoreCounters& counters_;
  std::uint32_t period_;
  std::uint32_t until_timed_;
  bool timed_ = false;
  std::uint64_t mark_ = 0;
  std::uint64_t first_ = 0;
  std::uint64_t reading_cycles_;
  std::uint64_t ceiling_cycles_;
};

}  // namespace pollen::probe
