// What the probe costs, and what it finds beside the kernel's own account.
//
//   probe_watch cost            ns per turn of a loop with the probe in it
//   probe_watch lost SECONDS    a spinning loop: time lost by the probe, and by the kernel's run-queue
//                               account (/proc/thread-self/schedstat) of the same time, ns
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "pollen/probe/preemption.hpp"
#include "pollen/probe/self_cost.hpp"
#include "pollen/probe/tsc.hpp"

namespace {

using namespace pollen;

// How long this thread was ready to run and did not.
std::uint64_t run_queue_wait_ns() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::uint64_t on_cpu_ns = 0;
  std::uint64_t waited_ns = 0;
  if (!(file >> on_cpu_ns >> waited_ns)) {
    std::fputs("probe_watch: the kernel keeps no /proc/thread-self/schedstat (CONFIG_SCHED_INFO)\n", stderr);
    std::exit(2);
  }
  return waited_ns;
}

void lost(double seconds) {
  probe::PreemptionDetector detector;
  const std::uint64_t waited_before = run_queue_wait_ns();
  detector.restart();
  const std::uint64_t begin = probe::now_cycles();
  const auto length = static_cast<std::uint64_t>(seconds * 1e9 * probe::tsc_scale().cycles_per_ns());
  for (std::uint64_t now = begin; now - begin < length; now = probe::now_cycles()) detector.turn(now);
  detector.settle();
  const std::uint64_t waited = run_queue_wait_ns() - waited_before;
  const probe::PreemptionReport report = detector.report();
  std::printf("watched %llu lost %llu kernel %llu gaps %llu\n",
              static_cast<unsigned long long>(report.watched_ns),
              static_cast<unsigned long long>(report.lost_ns), static_cast<unsigned long long>(waited),
              static_cast<unsigned long long>(report.gaps));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "cost" && argc == 2) {
    const probe::SelfCost cost = probe::measure_self_cost();
    std::printf("turn %.3f reading %.1f\n", cost.turn_ns, cost.reading_ns);
    return 0;
  }
  const double seconds = what == "lost" && argc == 3 ? std::strtod(argv[2], nullptr) : 0;
  if (seconds > 0 && seconds <= 600) {
    lost(seconds);
    return 0;
  }
  std::fputs("probe_watch cost, or probe_watch lost SECONDS (up to 600)\n", stderr);
  return 1;
}
