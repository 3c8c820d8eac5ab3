#include "pollen/probe/preemption.hpp"

#include <doctest/doctest.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>

using namespace pollen::probe;

namespace {

constexpr std::uint64_t ms = 1'000'000;

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  REQUIRE(::pthread_setaffinity_np(::pthread_self(), sizeof set, &set) == 0);
}

// A CPU that this process may use, the last one, since the first is the busiest with interrupts.
int usable_cpu() {
  cpu_set_t set;
  CPU_ZERO(&set);
  REQUIRE(::sched_getaffinity(0, sizeof set, &set) == 0);
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0; --cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) return cpu;
  }
  return 0;
}

void spin_ns(std::uint64_t ns) {
  const std::uint64_t start = now_cycles();
  const std::uint64_t cycles = tsc_scale().to_cycles(ns);
  while (now_cycles() - start < cycles) {
  }
}

// Uses the CPU in bursts, beside whoever else runs there.
class NoisyNeighbour {
 public:
  NoisyNeighbour(int cpu, std::uint64_t burst_ns, std::uint64_t pause_ns)
      : thread_([=, this] {
          pin_to(cpu);
          const timespec pause{0, static_cast<long>(pause_ns)};
          while (!done_.load(std::memory_order_relaxed)) {
            spin_ns(burst_ns);
            ::nanosleep(&pause, nullptr);
          }
        }) {}
  ~NoisyNeighbour() {
    done_ = true;
    thread_.join();
  }
  NoisyNeighbour(const NoisyNeighbour&) = delete;
  NoisyNeighbour& operator=(const NoisyNeighbour&) = delete;

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// What a pinned loop, run for a while on its own thread, is told that it lost.
template <class Turn>
PreemptionReport watched_loop(int cpu, const PreemptionOptions& options, std::uint64_t duration_ns,
                              Turn turn) {
  PreemptionReport report;
  std::thread worker([&] {
    pin_to(cpu);
    PreemptionDetector detector(options);
    const std::uint64_t end = now_cycles() + tsc_scale().to_cycles(duration_ns);
    for (std::uint64_t now = now_cycles(); now < end; now = now_cycles()) {
      detector.turn(now);
      turn();
    }
    detector.settle();
    report = detector.report();
  });
  worker.join();
  return report;
}

double difference(const PreemptionReport& report) {
  const auto kernel = static_cast<double>(*report.kernel.runqueue_wait_ns);
  return std::abs(static_cast<double>(report.lost_ns) - kernel) / kernel;
}

bool schedstat_missing() {
  if (read_kernel_account(current_thread_id(), -1).runqueue_wait_ns) return false;
  MESSAGE("skipped: this kernel has no /proc/<pid>/schedstat to compare with");
  return true;
}

}  // namespace

TEST_SUITE("probe.lost_time") {
  TEST_CASE("lost time is wall time without CPU time") {
    LostTime lost(10'000);
    lost.begin(1000, 500);
    lost.reading(1000 + 5 * ms, 500 + 2 * ms, 4 * ms);
    PreemptionReport report;
    lost.fill(report);
    CHECK(report.watched_ns == 5 * ms);
    CHECK(report.lost_ns == 3 * ms);
    CHECK(report.gaps == 1);
    CHECK(report.gap_lost_ns == 3 * ms);
    CHECK(report.longest_ns == 3 * ms);
    CHECK(report.long_turns == 0);
    CHECK(lost.gap_histogram().count() == 1);
    CHECK(lost.gap_histogram().max() == 3 * ms);
  }

  TEST_CASE("a long callback is a long turn and nothing lost") {
    LostTime lost(10'000);
    lost.begin(0, 0);
    lost.reading(20 * ms, 20 * ms - 200, 19 * ms);
    PreemptionReport report;
    lost.fill(report);
    CHECK(report.lost_ns == 200);
    CHECK(report.gaps == 0);
    CHECK(report.long_turns == 1);
    CHECK(report.long_turn_ns == 19 * ms);
  }

  TEST_CASE("losses too short to be gaps are in the sum") {
    LostTime lost(10'000);
    lost.begin(0, 0);
    for (std::uint64_t i = 1; i <= 10; ++i) lost.reading(i * ms, i * ms - i * 3000, 0);
    PreemptionReport report;
    lost.fill(report);
    CHECK(report.lost_ns == 30'000);
    CHECK(report.gaps == 0);
  }

  TEST_CASE("a reading that was itself interrupted is put right by the next") {
    LostTime lost(10'000);
    lost.begin(0, 0);
    lost.reading(2 * ms, 1 * ms, 0);  // wall read 1 ms after the CPU clock
    CHECK(lost.lost_ns() == 1 * ms);
    lost.reading(3 * ms, 3 * ms - 100, 0);  // the thread had run all the time
    CHECK(lost.lost_ns() == 100);
    lost.reading(4 * ms, 4 * ms, 0);
    CHECK(lost.lost_ns() == 0);
    lost.reading(5 * ms, 5 * ms + 50, 0);  // never below nothing
    CHECK(lost.lost_ns() == 0);
  }

  TEST_CASE("of a sleep only the wait for the CPU is lost") {
    LostTime lost(10'000);
    lost.begin(0, 0);
    lost.slept(10 * ms, 1 * ms, 2 * ms);
    PreemptionReport report;
    lost.fill(report);
    CHECK(report.watched_ns == 10 * ms);
    CHECK(report.lost_ns == 2 * ms);
    CHECK(report.slept_ns == 7 * ms);
  }
}

TEST_SUITE("probe.preemption") {
  TEST_CASE("time lost to a noisy neighbour is what the kernel accounts for, within a tenth") {
    if (schedstat_missing()) return;
    const int cpu = usable_cpu();
    // Another machine's load may fall into a run (interrupts, steal), so there are several tries.
    PreemptionReport report;
    for (int attempt = 0; attempt < 5; ++attempt) {
      const NoisyNeighbour neighbour(cpu, 3 * ms, 4 * ms);
      report = watched_loop(cpu, {}, 300 * ms, [] {});
      if (*report.kernel.runqueue_wait_ns > 10 * ms && difference(report) < 0.1) break;
    }
    CAPTURE(report.explain());
    CAPTURE(*report.kernel.runqueue_wait_ns);
    CHECK(*report.kernel.runqueue_wait_ns > 10 * ms);
    CHECK(difference(report) < 0.1);
    CHECK(report.gaps > 0);
    CHECK(report.longest_ns > 100'000);
    CHECK(report.gap_lost_ns <= report.lost_ns);
    CHECK(report.kernel.involuntary_switches.value_or(1) > 0);
    CHECK(report.causes().other_threads_ns >= report.lost_ns / 2);
    CHECK(report.explain().find("to other threads on CPU " + std::to_string(cpu)) != std::string::npos);
  }

  TEST_CASE("time lost between readings, in gaps that were not looked at, is in the sum") {
    if (schedstat_missing()) return;
    const int cpu = usable_cpu();
    PreemptionReport report;
    for (int attempt = 0; attempt < 5; ++attempt) {
      const NoisyNeighbour neighbour(cpu, 1 * ms, 1 * ms);
      report = watched_loop(cpu, {.gap_ns = 1'000 * ms, .refresh_ns = 50 * ms}, 300 * ms, [] {});
      if (*report.kernel.runqueue_wait_ns > 10 * ms && difference(report) < 0.1) break;
    }
    CAPTURE(report.explain());
    CHECK(report.gaps == 0);
    CHECK(*report.kernel.runqueue_wait_ns > 10 * ms);
    CHECK(difference(report) < 0.1);
  }

  TEST_CASE("long callbacks beside a noisy neighbour are not taken for preemption") {
    if (schedstat_missing()) return;
    const int cpu = usable_cpu();
    PreemptionReport report;
    for (int attempt = 0; attempt < 5; ++attempt) {
      const NoisyNeighbour neighbour(cpu, 3 * ms, 10 * ms);
      report = watched_loop(cpu, {}, 300 * ms, [] { spin_ns(200'000); });
      if (*report.kernel.runqueue_wait_ns > 10 * ms && difference(report) < 0.1) break;
    }
    CAPTURE(report.explain());
    CHECK(report.long_turns > 100);
    CHECK(report.long_turn_ns > 20 * ms);
    CHECK(difference(report) < 0.1);
  }

  TEST_CASE("a sleep on purpose is not lost time") {
    PreemptionDetector detector;
    const timespec pause{0, 20 * static_cast<long>(ms)};
    detector.turn(now_cycles());
    detector.sleep_begin();
    ::nanosleep(&pause, nullptr);
    detector.sleep_end();
    detector.turn(now_cycles());
    const PreemptionReport report = detector.report();
    CHECK(report.slept_ns + report.lost_ns >= 19 * ms);
    CHECK(report.slept_ns > 0);
    // All that may be lost is the wait for the CPU, which the kernel accounts for too.
    if (report.kernel.runqueue_wait_ns) CHECK(report.lost_ns <= *report.kernel.runqueue_wait_ns + 5 * ms);
  }

  TEST_CASE("a blocking call in the loop is lost time, and the report says whose fault it is") {
    PreemptionDetector detector;
    detector.turn(now_cycles());
    const timespec pause{0, 30 * static_cast<long>(ms)};
    ::nanosleep(&pause, nullptr);
    detector.turn(now_cycles());
    detector.settle();
    const PreemptionReport report = detector.report();
    CHECK(report.lost_ns >= 29 * ms);
    CHECK(report.gaps >= 1);
    CHECK(report.causes().blocked_ns > 0);
    CHECK(report.explain().find("blocking calls of the thread itself") != std::string::npos);
  }

  TEST_CASE("what came before restart() is forgotten") {
    PreemptionDetector detector;
    const timespec pause{0, 30 * static_cast<long>(ms)};
    ::nanosleep(&pause, nullptr);
    const std::uint64_t start = now_cycles();
    detector.restart();
    detector.turn(now_cycles());
    detector.settle();
    const std::uint64_t since_ns = tsc_scale().to_ns(now_cycles() - start);
    CHECK(detector.report().watched_ns <= since_ns + 1000);
    CHECK(detector.lost_ns() <= since_ns + 1000);
  }

  TEST_CASE("another thread reads the report of a loop that runs") {
    PreemptionDetector* shared = nullptr;
    std::atomic<bool> ready{false};
    std::atomic<bool> done{false};
    std::thread worker([&] {
      PreemptionDetector detector({.refresh_ns = ms});
      shared = &detector;
      ready = true;
      while (!done.load(std::memory_order_relaxed)) detector.turn(now_cycles());
    });
    while (!ready.load()) std::this_thread::yield();
    std::uint64_t watched_ns = 0;
    bool grew = true;
    // Bounded: 5 s are far beyond the 2 ms that the loop needs.
    for (int i = 0; i < 5000 && watched_ns < 2 * ms; ++i) {
      const PreemptionReport report = shared->report();
      grew = grew && report.watched_ns >= watched_ns;
      watched_ns = report.watched_ns;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    done = true;
    worker.join();
    CHECK(grew);
    CHECK(watched_ns >= 2 * ms);
  }
}

TEST_SUITE("probe.preemption_report") {
  TEST_CASE("the causes add up to what was lost, the kernel's own figures first") {
    PreemptionReport report;
    report.lost_ns = 100;
    report.kernel = {.runqueue_wait_ns = 60, .voluntary_switches = 0, .steal_ns = 25, .interrupt_ns = 10};
    const auto causes = report.causes();
    CHECK(causes.other_threads_ns == 60);
    CHECK(causes.steal_ns == 25);
    CHECK(causes.interrupts_ns == 10);
    CHECK(causes.blocked_ns == 0);
    CHECK(causes.unknown_ns == 5);

    report.kernel.runqueue_wait_ns = 140;
    CHECK(report.causes().other_threads_ns == 100);
    CHECK(report.causes().unknown_ns == 0);
  }

  TEST_CASE("the sentence says how much, to what, and what to do") {
    PreemptionReport report;
    report.watched_ns = 1000 * ms;
    report.lost_ns = 300 * ms;
    report.gaps = 75;
    report.gap_lost_ns = 300 * ms;
    report.longest_ns = 4 * ms;
    report.cpu = 3;
    report.kernel = {.runqueue_wait_ns = 290 * ms,
                     .voluntary_switches = 0,
                     .involuntary_switches = 75,
                     .migrations = 1,
                     .steal_ns = 10 * ms,
                     .interrupt_ns = 0};
    CHECK(report.explain() ==
          "lost 300.0 ms of 1000.0 ms (30.00 %) in 75 gaps, the longest 4.0 ms: 290.0 ms to other threads "
          "on CPU 3, "
          "10.0 ms to the hypervisor (steal); 75 involuntary switches, 1 migration to another CPU. Keep "
          "other threads "
          "off CPU 3 (isolcpus, cpuset), or choose another with --lcores");
  }

  TEST_CASE("a quiet run gets no advice") {
    PreemptionReport report;
    report.watched_ns = 10'000 * ms;
    report.kernel.runqueue_wait_ns = 0;
    CHECK(report.explain() == "lost 0 ns of 10.0 s (0.00 %)");
    CHECK(PreemptionReport{}.explain() == "nothing watched yet");
  }

  TEST_CASE("a kernel that doesn't account for waiting is named, not passed over") {
    PreemptionReport report;
    report.watched_ns = 100 * ms;
    report.lost_ns = 1000;
    CHECK(report.explain() ==
          "lost 1000 ns of 100.0 ms (0.00 %): 1000 ns to what the kernel doesn't account for; this kernel "
          "doesn't tell "
          "how long threads wait for a CPU");
  }
}

TEST_SUITE("probe.kernel_account") {
  TEST_CASE("the kernel's figures of the calling thread are there and grow") {
    const int cpu = ::sched_getcpu();
    const KernelAccount before = read_kernel_account(current_thread_id(), cpu);
    const timespec pause{0, static_cast<long>(ms)};
    for (int i = 0; i < 3; ++i) ::nanosleep(&pause, nullptr);
    const KernelAccount between = read_kernel_account(current_thread_id(), cpu) - before;
    REQUIRE(between.voluntary_switches.has_value());
    CHECK(*between.voluntary_switches >= 3);
    CHECK(between.involuntary_switches.has_value());
    CHECK(between.steal_ns.has_value());
    CHECK(between.interrupt_ns.has_value());
  }

  TEST_CASE("what can't be read is absent, not 0") {
    const KernelAccount account = read_kernel_account(0x3fffffff, 100'000);
    CHECK_FALSE(account.runqueue_wait_ns.has_value());
    CHECK_FALSE(account.voluntary_switches.has_value());
    CHECK_FALSE(account.migrations.has_value());
    CHECK_FALSE(account.steal_ns.has_value());
    CHECK_FALSE((account - account).steal_ns.has_value());
  }
}
