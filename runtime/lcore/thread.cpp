#include "pollen/lcore/thread.hpp"

#include <fmt/format.h>
#include <numaif.h>
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <future>
#include <utility>

#include "pollen/base/error.hpp"
#include "pollen/lcore/affinity.hpp"

namespace pollen::lcore {

namespace {

// A thread inherits the mask of its creator; so it is blocked before the thread exists, and no signal
// can slip in between.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    // A thread's own faults cannot wait: blocked, they would end the process past any crash handler.
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

void allocate_locally(unsigned cpu) {
  // The policy that numactl may have left behind is inherited; a worker's memory belongs to its node.
  if (set_mempolicy(MPOL_PREFERRED, nullptr, 0) == 0) return;
  // Kernels without NUMA know no policy, and container profiles forbid to set one. Local is then the default.
  if (errno == ENOSYS || errno == EPERM) return;
  throw Error(errno, {.attempted = "prefer memory of the own node", .on = fmt::format("lcore {}", cpu)});
}

void go_realtime(unsigned cpu) {
  sched_param parameters{};
  parameters.sched_priority = sched_get_priority_min(SCHED_FIFO);
  if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &parameters) == 0) return;
  const int errnum = errno;
  throw Error(errnum,
              {.attempted = "run under SCHED_FIFO (--realtime)",
               .on = fmt::format("lcore {}", cpu),
               .remedy = errnum == EPERM ? "Run as root, grant the program CAP_SYS_NICE, or raise the limit: "
                                           "ulimit -r 1. In a cgroup v1, cpu.rt_runtime_us must be above 0"
                                         : ""});
}

void check_place(unsigned cpu) {
  const int here = sched_getcpu();
  if (here == static_cast<int>(cpu) && affinity() == CpuSet{cpu}) return;
  throw Error(EAGAIN, {.attempted = fmt::format("stay on lcore {}", cpu),
                       .why = fmt::format("the thread was pinned and yet runs on CPU {}", here),
                       .remedy = "Something else sets the affinity of this process; stop that"});
}

}  // namespace

void settle_on(const Lcore& lcore, ThreadOptions options) {
  set_affinity(CpuSet{lcore.cpu});
  // A name is a convenience; a kernel that refuses it is no reason to stop.
  pthread_setname_np(pthread_self(), fmt::format("lcore-{}", lcore.cpu).c_str());
  allocate_locally(lcore.cpu);
  if (options.realtime) go_realtime(lcore.cpu);
  check_place(lcore.cpu);
}

LcoreThread::LcoreThread(const Lcore& lcore, ThreadOptions options, std::function<void()> function)
    : cpu_(lcore.cpu), failure_(std::make_unique<std::exception_ptr>()) {
  std::promise<void> settled;
  std::future<void> is_settled = settled.get_future();
  std::promise<bool> go;
  {
    const AllSignalsBlocked blocked;
    thread_ = std::thread([lcore, options, function = std::move(function), settled = std::move(settled),
                           may_go = go.get_future(), failure = failure_.get()]() mutable {
      try {
        settle_on(lcore, options);
        settled.set_value();
      } catch (...) {
        settled.set_exception(std::current_exception());
        return;
      }
      if (!may_go.get()) return;  // the creator has given up, and *failure may be gone
      try {
        function();
      } catch (...) {
        *failure = std::current_exception();
      }
    });
  }

  constexpr std::chrono::seconds limit{10};
  if (is_settled.wait_for(limit) != std::future_status::ready) {
    go.set_value(false);
    thread_.detach();
    throw Error(ETIMEDOUT, {.attempted = fmt::format("start a thread on lcore {}", cpu_),
                            .why = fmt::format("it did not get to run within {} s", limit.count()),
                            .remedy = "Look for a realtime task that never leaves this CPU"});
  }
  try {
    is_settled.get();
  } catch (...) {
    thread_.join();
    throw;
  }
  go.set_value(true);
}

LcoreThread::~LcoreThread() {
  if (thread_.joinable()) thread_.join();
}

void LcoreThread::join() {
  if (!thread_.joinable()) return;
  thread_.join();
  if (*failure_) std::rethrow_exception(std::exchange(*failure_, nullptr));
}

}  // namespace pollen::lcore
