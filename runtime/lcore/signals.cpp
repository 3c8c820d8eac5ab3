#include "pollen/lcore/signals.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>

#include "pollen/base/error.hpp"

namespace pollen::lcore {

namespace {

// What the handler may touch: lock-free atomics and async-signal-safe calls only.
std::atomic<int> handler_fd{-1};
std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_at_ns{0};

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int signal) {
  constexpr std::int64_t same_within_ns = 100'000'000;
  const int saved_errno = errno;
  const std::int64_t now = now_ns();
  std::int64_t never = 0;
  if (first_at_ns.compare_exchange_strong(never, now)) {
    first_signal = signal;
    const std::uint64_t one = 1;
    // An eventfd that counts to 1 always has room.
    [[maybe_unused]] const ssize_t written = write(handler_fd, &one, sizeof one);
  } else if (now - first_at_ns > same_within_ns) {
    _exit(128 + signal);
  }
  errno = saved_errno;
}

}  // namespace

SignalGuard::SignalGuard(std::function<void()> on_stop)
    : on_stop_(std::move(on_stop)), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_fd_ < 0) throw Error(errno, {.attempted = "create an eventfd for signals"});
  int none = -1;
  if (!handler_fd.compare_exchange_strong(none, wake_fd_)) {
    close(wake_fd_);
    throw Error(EBUSY, {.attempted = "handle signals", .why = "another SignalGuard of this process does"});
  }
  first_signal = 0;
  first_at_ns = 0;

  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_int_);
  sigaction(SIGTERM, &action, &before_term_);
  // The mask may have been inherited with these blocked; then the second could not end the process.
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGINT);
  sigaddset(&ours, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &ours, &before_mask_);
}

SignalGuard::~SignalGuard() {
  pthread_sigmask(SIG_SETMASK, &before_mask_, nullptr);
  sigaction(SIGINT, &before_int_, nullptr);
  sigaction(SIGTERM, &before_term_, nullptr);
  handler_fd = -1;
  close(wake_fd_);
}

int SignalGuard::wait(std::int64_t timeout_ns) {
  constexpr std::int64_t longest_ns = std::int64_t{1} << 60;  // keeps the sum below in range
  const std::int64_t deadline_ns = now_ns() + std::min(timeout_ns, longest_ns);
  for (;;) {
    std::uint64_t count = 0;
    if (read(wake_fd_, &count, sizeof count) == sizeof count) {
      if (on_stop_) on_stop_();
      return first_signal;
    }
    const std::int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) return 0;
    const timespec left{.tv_sec = left_ns / 1'000'000'000, .tv_nsec = left_ns % 1'000'000'000};
    pollfd waiting{.fd = wake_fd_, .events = POLLIN, .revents = 0};
    ppoll(&waiting, 1, &left, nullptr);  // woken, timed out or interrupted: the loop looks at what is so
  }
}

}  // namespace pollen::lcore
