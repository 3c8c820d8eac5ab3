// What one lcore counts. Always on: an increment is a plain load, add and store in a cache line
// that no other lcore writes.
//
// Units: cycles of the time stamp counter, bytes, pieces. All counters only grow.
// Thread rules: the owner adds; any thread may take a snapshot. Each number in a snapshot is one
// that the counter had; two numbers may be of slightly different moments.
// Errors: none, noexcept.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pollen/probe/tsc.hpp"

namespace pollen::probe {

// A number with one writer: no lock prefix, and never torn for a reader.
class Counter {
 public:
  void add(std::uint64_t amount) noexcept { set(get() + amount); }
  void set(std::uint64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// What an lcore does with its time.
enum class Phase : std::uint8_t { post, poll_empty, poll_productive, device, app, idle };
inline constexpr std::array phases{Phase::post,   Phase::poll_empty, Phase::poll_productive,
                                   Phase::device, Phase::app,        Phase::idle};
constexpr std::string_view name(Phase phase) noexcept {
  constexpr std::array<std::string_view, phases.size()> names{"post",   "poll_empty", "poll_productive",
                                                              "device", "app",        "idle"};
  return names[static_cast<std::size_t>(phase)];
}

// The numbers, held as Counter in the lcore's own set and as integers in a snapshot.
template <class Number>
struct CounterSet {
  // Estimates when they come from a TurnTimer; shares of them are what counts.
  std::array<Number, phases.size()> phase_cycles{};
  Number total_cycles{};  // exact: from the first turn to the last
  Number turns{};
  Number wrs{};        // posted, receives included
  Number cqes{};       // polled
  Number doorbells{};  // rung
  Number bytes_sent{};
  Number bytes_received{};
  // Measured on sampled turns; preempted samples are left out.
  Number post_sample_cycles{};
  Number post_sample_wrs{};
  Number poll_sample_cycles{};
  Number poll_sample_cqes{};

  Number& cycles(Phase phase) noexcept { return phase_cycles[static_cast<std::size_t>(phase)]; }
  const Number& cycles(Phase phase) const noexcept { return phase_cycles[static_cast<std::size_t>(phase)]; }

  // Calls visit(number of this set, the same number of the other set) for all of them.
  template <class Other, class Visit>
  void each(Other& other, Visit visit) {
    for (std::size_t i = 0; i < phases.size(); ++i) visit(phase_cycles[i], other.phase_cycles[i]);
    visit(total_cycles, other.total_cycles);
    visit(turns, other.turns);
    visit(wrs, other.wrs);
    visit(cqes, other.cqes);
    visit(doorbells, other.doorbells);
    visit(bytes_sent, other.bytes_sent);
    visit(bytes_received, other.bytes_received);
    visit(post_sample_cycles, other.post_sample_cycles);
    visit(post_sample_wrs, other.post_sample_wrs);
    visit(poll_sample_cycles, other.poll_sample_cycles);
    visit(poll_sample_cqes, other.poll_sample_cqes);
  }
};

struct CounterSnapshot : CounterSet<std::uint64_t> {
  // What was counted since an earlier snapshot of the same lcore.
  CounterSnapshot operator-(const CounterSnapshot& earlier) const noexcept {
    CounterSnapshot difference = *this;
    difference.each(earlier, [](std::uint64_t& mine, std::uint64_t theirs) { mine -= theirs; });
    return difference;
  }
  // Sums over lcores.
  CounterSnapshot& operator+=(const CounterSnapshot& other) noexcept {
    each(other, [](std::uint64_t& mine, std::uint64_t theirs) { mine += theirs; });
    return *this;
  }

  // Share of the time spent in a phase, 0 to 1; 0 while nothing was timed.
  double share(Phase phase) const noexcept {
    std::uint64_t sum = 0;
    for (const std::uint64_t part : phase_cycles) sum += part;
    return ratio(cycles(phase), sum);
  }
  // Nanoseconds spent in a phase: its share of the exact total.
  double phase_ns(Phase phase) const noexcept { return share(phase) * total_ns(); }
  double total_ns() const noexcept { return tsc_scale().ns(static_cast<double>(total_cycles)); }

  // Nanoseconds per WR posted and per CQE polled; 0 while none was sampled.
  double ns_per_wr() const noexcept { return tsc_scale().ns(ratio(post_sample_cycles, post_sample_wrs)); }
  double ns_per_cqe() const noexcept { return tsc_scale().ns(ratio(poll_sample_cycles, poll_sample_cqes)); }

 private:
  static double ratio(std::uint64_t part, std::uint64_t whole) noexcept {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// Aligned to two cache lines, since CPUs prefetch lines in pairs.
struct alignas(128) LcoreCounters : CounterSet<Counter> {
  CounterSnapshot snapshot() const noexcept {
    CounterSnapshot copy;
    copy.each(*this, [](std::uint64_t& mine, const Counter& theirs) { mine = theirs.get(); });
    return copy;
  }
};

}  // namespace pollen::probe
