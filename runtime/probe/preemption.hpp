// How much time the kernel, its other threads or the hypervisor took from a loop that believes
// that its core is its own.
//
// Why it works. A loop that was preempted sees a gap between two of its turns; but so does one
// whose callback took long. The two are told apart by the thread's CPU clock, which runs while
// the thread runs and stands still while it waits: lost time is wall time minus CPU time. The
// CPU clock costs a system call, so that the two clocks are read only at a gap, and every
// refresh_ns. Each reading adds the differences since the one before it; the differences add up
// to those of the whole run, however the readings fall. So
//   - time lost in gaps too short to be noticed is in the sum with the next reading,
//   - a long callback or a burst of work adds nothing, since the CPU clock ran along,
//   - a reading that is itself interrupted is put right by the next one (differences are signed).
// Both clocks come from the kernel's own scale, so that hours of work don't add up to a drift.
//
// A turn costs two subtractions and compares. A reading costs about half a microsecond; an
// interval between readings of at least 100 times that keeps them under 1 % even in a loop each
// turn of which is long. Gaps inside of such an interval are merged into one.
//
// Time asleep on purpose (waiting in epoll for work) lies between sleep_begin() and sleep_end(),
// and only the wait for the CPU after waking up counts as lost. Another blocking call in the loop
// counts as lost, and the report says so: a worker mustn't block.
// Interrupts count as lost where the kernel keeps them out of thread time (CONFIG_IRQ_TIME_ACCOUNTING),
// and steal where CONFIG_PARAVIRT_TIME_ACCOUNTING does; else the CPU clock runs through them.
//
// Units: nanoseconds, and cycles of now_cycles() for turn(). Ownership: watches the thread that
// makes it. Thread rules: owner only, but for report() and lost_ns().
// Errors: none; what the kernel doesn't tell is absent from the report.
#pragma once

#include <cstdint>
#include <string>

#include "pollen/probe/counters.hpp"
#include "pollen/probe/histogram.hpp"
#include "pollen/probe/kernel_account.hpp"

namespace pollen::probe {

struct PreemptionOptions {
  std::uint64_t gap_ns = 10'000;         // a turn that takes longer is looked into
  std::uint64_t refresh_ns = 4'000'000;  // how stale the published numbers may be
};

struct PreemptionReport {
  std::uint64_t watched_ns = 0;   // wall time, sleep included
  std::uint64_t slept_ns = 0;     // on purpose
  std::uint64_t lost_ns = 0;      // wall time without the CPU
  std::uint64_t gaps = 0;         // turns that lost a noticeable part of their time
  std::uint64_t gap_lost_ns = 0;  // part of lost_ns that fell into those turns
  std::uint64_t longest_ns = 0;   // the most that one turn lost
  std::uint64_t long_turns = 0;   // turns over the threshold that had the CPU: the app's own
  std::uint64_t long_turn_ns = 0;
  std::uint64_t gap_threshold_ns = 0;
  int cpu = -1;          // where the thread ran when the watch began
  KernelAccount kernel;  // the kernel's own account of the same time

  // What took lost_ns; the parts add up to it.
  struct Causes {
    std::uint64_t other_threads_ns = 0;  // run-queue wait
    std::uint64_t steal_ns = 0;
    std::uint64_t interrupts_ns = 0;
    std::uint64_t blocked_ns = 0;  // the thread's own blocking calls
    std::uint64_t unknown_ns = 0;
  };
  Causes causes() const noexcept;

  // How much time was lost, to what, and what to do about it.
  std::string explain() const;
};

// The arithmetic: readings of the two clocks in, lost time out. Separate from where they come from.
class LostTime {
 public:
  explicit LostTime(std::uint64_t gap_ns) noexcept : gap_ns_(gap_ns) {}

  // Forgets what was, and counts from this moment on.
  void begin(std::uint64_t wall_ns, std::uint64_t cpu_ns) noexcept;
  // gap_ns: the longest turn since the reading before, when it was over the threshold; else 0.
  void reading(std::uint64_t wall_ns, std::uint64_t cpu_ns, std::uint64_t gap_ns) noexcept;
  // Time on purpose without the CPU, up to wall_ns; lost_ns of it was not on purpose.
  void slept(std::uint64_t wall_ns, std::uint64_t cpu_ns, std::uint64_t lost_ns) noexcept;

  // Any thread may read the report's numbers; the histogram is the owner's.
  void fill(PreemptionReport& report) const noexcept;
  std::uint64_t lost_ns() const noexcept { return lost_ns_.get(); }
  const Histogram& gap_histogram() const noexcept { return gap_histogram_; }

 private:
  void move_to(std::uint64_t wall_ns, std::uint64_t cpu_ns) noexcept {
    wall_ns_ = wall_ns;
    cpu_ns_ = cpu_ns;
  }
  void publish() noexcept;

  std::uint64_t gap_ns_;
  std::uint64_t wall_ns_ = 0;
  std::uint64_t cpu_ns_ = 0;
  std::int64_t signed_lost_ns_ = 0;
  Counter watched_ns_;
  Counter slept_ns_;
  Counter lost_ns_;
  Counter gaps_;
  Counter gap_lost_ns_;
  Counter longest_ns_;
  Counter long_turns_;
  Counter long_turn_ns_;
  Histogram gap_histogram_;
};

class PreemptionDetector {
 public:
  // Watches the calling thread from now on.
  explicit PreemptionDetector(const PreemptionOptions& options = {});
  ~PreemptionDetector();
  PreemptionDetector(const PreemptionDetector&) = delete;
  PreemptionDetector& operator=(const PreemptionDetector&) = delete;

  // Forgets all before now: for the last moment before the loop, when its setup took a while.
  void restart();

  // Once per turn of the loop; now is a now_cycles() of this turn.
  void turn(std::uint64_t now) noexcept {
    if (now - last_turn_ > gap_cycles_ || now - last_reading_ > refresh_cycles_) [[unlikely]] {
      now = look(now);
    }
    last_turn_ = now;
  }

  void sleep_begin() noexcept;
  void sleep_end() noexcept;

  // Reads the clocks now, so that a following report() is exact to this moment.
  void settle() noexcept;

  // From any thread while the watched one lives; as of its last reading of the clocks.
  PreemptionReport report() const;

  std::uint64_t lost_ns() const noexcept { return lost_.lost_ns(); }  // from any thread
  const Histogram& gap_histogram() const noexcept { return lost_.gap_histogram(); }
  double reading_cost_ns() const noexcept { return reading_cost_ns_; }

 private:
  // Both return the time up to which the turn is accounted for.
  std::uint64_t look(std::uint64_t now) noexcept;
  std::uint64_t read() noexcept;
  std::uint64_t runqueue_wait_ns() const noexcept;

  std::uint64_t last_turn_ = 0;
  std::uint64_t last_reading_ = 0;
  std::uint64_t gap_cycles_;
  std::uint64_t refresh_cycles_;
  std::uint64_t spacing_cycles_ = 0;  // least time between readings
  std::uint64_t longest_gap_cycles_ = 0;
  LostTime lost_;
  std::uint64_t wait_before_sleep_ns_ = 0;
  double reading_cost_ns_ = 0;
  pid_t thread_id_;
  int cpu_;
  int schedstat_fd_;
  KernelAccount before_;
};

}  // namespace pollen::probe
