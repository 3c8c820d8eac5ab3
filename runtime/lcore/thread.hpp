// A thread that stays on one lcore: pinned, named "lcore-N", all signals blocked but those of its own
// faults, memory from its own node, on request under SCHED_FIFO.
//
// The constructor returns once the thread stands where it should, and throws pollen::Error if it
// cannot be put there; then the function has not run and will not. An exception that leaves the
// function is kept and thrown by join(). The destructor joins too, without throwing: make the
// function end first.
//
// Thread rules: an object belongs to one thread at a time.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "pollen/lcore/plan.hpp"

namespace pollen::lcore {

struct ThreadOptions {
  // SCHED_FIFO at the lowest priority: ahead of all ordinary work, behind the kernel's own threads.
  bool realtime = false;
};

class LcoreThread {
 public:
  LcoreThread(const Lcore& lcore, ThreadOptions options, std::function<void()> function);
  ~LcoreThread();
  LcoreThread(LcoreThread&&) noexcept = default;
  LcoreThread& operator=(LcoreThread&&) = delete;
  LcoreThread(const LcoreThread&) = delete;
  LcoreThread& operator=(const LcoreThread&) = delete;

  void join();  // returns at once when joined before
  unsigned cpu() const { return cpu_; }

 private:
  unsigned cpu_;
  std::unique_ptr<std::exception_ptr> failure_;  // written by the thread; its place survives a move
  std::thread thread_;
};

// Does to the calling thread what LcoreThread does to its own, signals excepted: for apps whose main
// thread is the worker.
void settle_on(const Lcore& lcore, ThreadOptions options);

}  // namespace pollen::lcore
