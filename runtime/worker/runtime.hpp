// Runs an app on every lcore of a plan: locks the lcores, starts a pinned thread for each, makes the
// worker there, runs the loop, and sees to a clean end.
//
//   Runtime runtime(device, plan, options);
//   const RunResult result = runtime.run([&](unsigned index) { return MyApp(config, index); });
//
// The run ends when every worker has ended: each on its own (Worker::request_stop), or all of them
// on SIGINT or SIGTERM, when max_duration_ns is over, by request_stop(), or because one failed. A
// stop is clean: in-flight work is drained for at most WorkerOptions::drain_ns. A second signal ends
// the process at once.
//
// While workers run, the calling thread waits, on a CPU that no worker has where the process is
// allowed one; it handles the signals and calls on_tick.
//
// Thread rules: run() once, by the thread that made the Runtime; request_stop() and reports() from
// any thread. Errors: run() throws Error when it can't start, and what a worker threw as an Error
// that names its lcore; all other workers have ended by then.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/lcore/lock.hpp"
#include "pollen/lcore/plan.hpp"
#include "pollen/probe/report.hpp"
#include "pollen/worker/loop.hpp"
#include "pollen/worker/options.hpp"
#include "pollen/worker/worker.hpp"

namespace pollen::worker {

class Runtime;

struct RuntimeOptions {
  WorkerOptions worker = {};  // of each; index, lcore and node come from the plan
  bool realtime = false;      // SCHED_FIFO
  bool strict = false;        // the plan's advice is an error; otherwise it is logged, once
  bool handle_signals = true;
  bool lock_lcores = true;
  std::filesystem::path lock_directory = lcore::lock_directory();
  std::uint64_t max_duration_ns = 0;  // 0: no limit
  std::function<void(const Runtime&)> on_tick = {};
  std::uint64_t tick_ns = 1'000'000'000;
};

enum class StopCause : std::uint8_t { workers_ended, signal, duration, requested };
std::string_view name(StopCause cause) noexcept;

struct LcoreResult {
  probe::LcoreReport report;
  LoopResult end;
  std::vector<std::string> notes;  // see Worker::notes
};

struct RunResult {
  std::vector<LcoreResult> lcores;  // in the order of the plan
  StopCause cause = StopCause::workers_ended;
  int signal = 0;  // which, if that was the cause
};

// The probe's table, a row per lcore, and a sentence for each lcore that could not be drained.
std::string to_text(const RunResult& result);

class Runtime {
 public:
  // The device outlives it. Nothing is started or locked yet.
  Runtime(driver::Device& device, lcore::Plan plan, RuntimeOptions options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // make_app(index) makes the app of one worker, on its thread, one call at a time; the app need
  // not be movable and goes before its worker does.
  template <class MakeApp>
  RunResult run(MakeApp make_app) {
    std::mutex making;
    return run_each([&](Worker& worker) {
      std::unique_lock lock(making);
      auto app = make_app(worker.index());
      lock.unlock();
      return run_loop(worker, app);
    });
  }

  void request_stop() noexcept;

  // Of the workers that have come up so far, as they stand: their counters are read, the workers
  // are not disturbed.
  std::vector<probe::LcoreReport> reports() const;

  driver::Device& device() const noexcept { return device_; }
  const lcore::Plan& plan() const noexcept { return plan_; }

 private:
  // One per lcore. The mutex keeps the worker from going while another thread looks at it.
  struct Slot {
    mutable std::mutex mutex;
    Worker* worker = nullptr;
    std::optional<LcoreResult> result;
  };
  struct Failure {
    unsigned lcore;
    std::exception_ptr exception;
  };

  RunResult run_each(const std::function<LoopResult(Worker&)>& body);
  void run_worker(unsigned index, const std::function<LoopResult(Worker&)>& body);
  void require_memory() const;
  void wait_for_workers(RunResult& result);
  void fail(unsigned lcore, std::exception_ptr exception) noexcept;

  driver::Device& device_;
  const lcore::Plan plan_;
  const RuntimeOptions options_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::atomic<bool> stop_{false};

  std::mutex mutex_;  // of what follows
  std::condition_variable ended_;
  unsigned running_ = 0;
  std::optional<Failure> failure_;  // the first
};

}  // namespace pollen::worker

namespace pollen {
using worker::Runtime;
using worker::RuntimeOptions;
}  // namespace pollen
