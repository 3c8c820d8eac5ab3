#include "pollen/probe/preemption.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace pollen::probe {

namespace {

std::uint64_t clock_ns(clockid_t clock) noexcept {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

// Raw, since CLOCK_MONOTONIC is slewed by NTP and the CPU clock isn't.
std::uint64_t wall_clock_ns() noexcept { return clock_ns(CLOCK_MONOTONIC_RAW); }
std::uint64_t cpu_clock_ns() noexcept { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace

void LostTime::begin(std::uint64_t wall_ns, std::uint64_t cpu_ns) noexcept {
  signed_lost_ns_ = 0;
  for (Counter* counter : {&watched_ns_, &slept_ns_, &lost_ns_, &gaps_, &gap_lost_ns_, &longest_ns_,
                           &long_turns_, &long_turn_ns_}) {
    counter->set(0);
  }
  gap_histogram_.reset();
  move_to(wall_ns, cpu_ns);
}

void LostTime::reading(std::uint64_t wall_ns, std::uint64_t cpu_ns, std::uint64_t gap_ns) noexcept {
  const auto wall = static_cast<std::int64_t>(wall_ns - wall_ns_);
  const auto cpu = static_cast<std::int64_t>(cpu_ns - cpu_ns_);
  const std::int64_t lost = wall - cpu;
  signed_lost_ns_ += lost;
  watched_ns_.add(wall_ns - wall_ns_);
  move_to(wall_ns, cpu_ns);

  if (gap_ns != 0) {
    // Half the threshold: less than that may as well be the cost of an interrupt.
    if (lost > 0 && static_cast<std::uint64_t>(lost) >= gap_ns_ / 2) {
      const std::uint64_t in_gap = std::min(static_cast<std::uint64_t>(lost), gap_ns);
      gaps_.add(1);
      gap_lost_ns_.add(in_gap);
      longest_ns_.set(std::max(longest_ns_.get(), in_gap));
      gap_histogram_.record(in_gap);
    } else {
      long_turns_.add(1);
      long_turn_ns_.add(gap_ns);
    }
  }
  publish();
}

void LostTime::slept(std::uint64_t wall_ns, std::uint64_t cpu_ns, std::uint64_t lost_ns) noexcept {
  const std::uint64_t wall = wall_ns - wall_ns_;
  const std::uint64_t cpu = std::min(cpu_ns - cpu_ns_, wall);
  const std::uint64_t off_cpu = wall - cpu;
  const std::uint64_t lost = std::min(lost_ns, off_cpu);
  watched_ns_.add(wall);
  slept_ns_.add(off_cpu - lost);
  signed_lost_ns_ += static_cast<std::int64_t>(lost);
  move_to(wall_ns, cpu_ns);
  publish();
}

void LostTime::publish() noexcept {
  lost_ns_.set(static_cast<std::uint64_t>(std::max<std::int64_t>(signed_lost_ns_, 0)));
}

void LostTime::fill(PreemptionReport& report) const noexcept {
  report.watched_ns = watched_ns_.get();
  report.slept_ns = slept_ns_.get();
  report.lost_ns = lost_ns_.get();
  report.gaps = gaps_.get();
  report.gap_lost_ns = std::min(gap_lost_ns_.get(), report.lost_ns);
  report.longest_ns = longest_ns_.get();
  report.long_turns = long_turns_.get();
  report.long_turn_ns = long_turn_ns_.get();
  report.gap_threshold_ns = gap_ns_;
}

PreemptionDetector::PreemptionDetector(const PreemptionOptions& options)
    : gap_cycles_(tsc_scale().to_cycles(options.gap_ns)),
      refresh_cycles_(tsc_scale().to_cycles(options.refresh_ns)),
      lost_(options.gap_ns),
      thread_id_(current_thread_id()),
      cpu_(::sched_getcpu()),
      schedstat_fd_(
          ::open(fmt::format("/proc/self/task/{}/schedstat", thread_id_).c_str(), O_RDONLY | O_CLOEXEC)) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (int i = 0; i < 32; ++i) {
    const std::uint64_t start = now_cycles_ordered();
    const std::uint64_t cpu_ns = cpu_clock_ns();
    lost_.reading(wall_clock_ns(), cpu_ns, 0);
    least = std::min(least, now_cycles_ordered() - start);
  }
  reading_cost_ns_ = tsc_scale().ns(static_cast<double>(least));
  spacing_cycles_ = 100 * least;
  restart();
}

void PreemptionDetector::restart() {
  before_ = read_kernel_account(thread_id_, cpu_);
  const std::uint64_t cpu_ns = cpu_clock_ns();
  lost_.begin(wall_clock_ns(), cpu_ns);
  longest_gap_cycles_ = 0;
  last_turn_ = last_reading_ = now_cycles();
}

PreemptionDetector::~PreemptionDetector() {
  if (schedstat_fd_ >= 0) ::close(schedstat_fd_);
}

std::uint64_t PreemptionDetector::look(std::uint64_t now) noexcept {
  // Clocks of two CPUs may differ by a little when the thread has moved.
  if (now < last_turn_ || now < last_reading_) return now;
  if (now - last_turn_ > gap_cycles_) longest_gap_cycles_ = std::max(longest_gap_cycles_, now - last_turn_);
  return now - last_reading_ < spacing_cycles_ ? now : read();
}

std::uint64_t PreemptionDetector::read() noexcept {
  const std::uint64_t cpu_ns = cpu_clock_ns();
  const std::uint64_t wall_ns = wall_clock_ns();
  // The gap ends here, not at the turn's own TSC read: the thread may have been preempted again since.
  const std::uint64_t now = now_cycles();
  const std::uint64_t gap = now > last_turn_ ? now - last_turn_ : 0;
  if (gap > gap_cycles_) longest_gap_cycles_ = std::max(longest_gap_cycles_, gap);
  lost_.reading(wall_ns, cpu_ns, tsc_scale().to_ns(longest_gap_cycles_));
  longest_gap_cycles_ = 0;
  last_turn_ = last_reading_ = now;
  return now;
}

void PreemptionDetector::settle() noexcept { read(); }

std::uint64_t PreemptionDetector::runqueue_wait_ns() const noexcept {
  std::array<char, 96> text{};
  if (schedstat_fd_ < 0) return 0;
  const ssize_t length = ::pread(schedstat_fd_, text.data(), text.size(), 0);
  if (length <= 0) return 0;
  const char* begin = text.data();
  const char* end = begin + length;
  const char* second = std::find(begin, end, ' ');
  std::uint64_t wait_ns = 0;
  if (second != end) std::from_chars(second + 1, end, wait_ns);
  return wait_ns;
}

void PreemptionDetector::sleep_begin() noexcept {
  settle();
  wait_before_sleep_ns_ = runqueue_wait_ns();
}

void PreemptionDetector::sleep_end() noexcept {
  const std::uint64_t waited_ns = runqueue_wait_ns() - wait_before_sleep_ns_;
  const std::uint64_t cpu_ns = cpu_clock_ns();
  lost_.slept(wall_clock_ns(), cpu_ns, waited_ns);
  last_turn_ = last_reading_ = now_cycles();
}

PreemptionReport PreemptionDetector::report() const {
  PreemptionReport report;
  lost_.fill(report);
  report.cpu = cpu_;
  report.kernel = read_kernel_account(thread_id_, cpu_) - before_;
  return report;
}

}  // namespace pollen::probe
