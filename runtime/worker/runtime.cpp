#include "pollen/worker/runtime.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

#include "pollen/base/error.hpp"
#include "pollen/lcore/advice.hpp"
#include "pollen/lcore/affinity.hpp"
#include "pollen/lcore/signals.hpp"
#include "pollen/lcore/thread.hpp"
#include "pollen/memory/memlock.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::worker {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// How long a signal may wait for the calling thread to look.
constexpr std::chrono::milliseconds look_every{20};

// Keeps the calling thread off the workers' CPUs, if it is allowed on others.
class OutOfTheWay {
 public:
  explicit OutOfTheWay(const lcore::CpuSet& workers) : before_(lcore::affinity()) {
    const lcore::CpuSet others = before_ - workers;
    if (!others.empty()) lcore::set_affinity(others);
  }
  ~OutOfTheWay() {
    try {
      lcore::set_affinity(before_);
    } catch (const Error& error) {
      spdlog::warn("{}", error.what());
    }
  }
  OutOfTheWay(const OutOfTheWay&) = delete;
  OutOfTheWay& operator=(const OutOfTheWay&) = delete;

 private:
  lcore::CpuSet before_;
};

[[noreturn]] void rethrow_in_words(unsigned lcore, const std::exception_ptr& exception) {
  const std::string where = fmt::format("lcore {}", lcore);
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    ErrorText text = error.text();
    if (text.on.find(where) == std::string::npos) text.on += (text.on.empty() ? "" : ", ") + where;
    throw Error(error.code().value(), std::move(text));
  } catch (const std::exception& error) {
    throw Error(EIO, {.attempted = "run the app", .on = where, .why = error.what()});
  } catch (...) {
    throw Error(EIO, {.attempted = "run the app", .on = where, .why = "it threw what is no std::exception"});
  }
}

}  // namespace

std::string_view name(StopCause cause) noexcept {
  constexpr std::array<std::string_view, 4> names{"the workers ended", "signal", "the time is up",
                                                  "requested"};
  return names[static_cast<std::size_t>(cause)];
}

std::string to_text(const RunResult& result) {
  std::string text = probe::table_header();
  for (const LcoreResult& lcore : result.lcores) text += '\n' + probe::table_row(lcore.report);
  for (const LcoreResult& lcore : result.lcores) {
    if (lcore.end.in_flight != 0)
      text += fmt::format("\nlcore {} was stopped with {} requests in flight: they did not complete in time",
                          lcore.report.lcore, lcore.end.in_flight);
    else if (!lcore.end.drained)
      text += fmt::format("\nlcore {} was stopped before its app had finished", lcore.report.lcore);
  }
  return text;
}

Runtime::Runtime(driver::Device& device, lcore::Plan plan, RuntimeOptions options)
    : device_(device), plan_(std::move(plan)), options_(std::move(options)) {
  for (std::size_t i = 0; i < plan_.lcores.size(); ++i) slots_.push_back(std::make_unique<Slot>());
}

Runtime::~Runtime() = default;

void Runtime::request_stop() noexcept {
  stop_ = true;
  for (const auto& slot : slots_) {
    const std::lock_guard lock(slot->mutex);
    if (slot->worker != nullptr) slot->worker->request_stop();
  }
}

std::vector<probe::LcoreReport> Runtime::reports() const {
  std::vector<probe::LcoreReport> reports;
  for (const auto& slot : slots_) {
    const std::lock_guard lock(slot->mutex);
    if (slot->worker != nullptr)
      reports.push_back(slot->worker->report());
    else if (slot->result)
      reports.push_back(slot->result->report);
  }
  return reports;
}

void Runtime::require_memory() const {
  if (device_.info().driver == "soft") return;  // nothing is pinned
  const WorkerOptions& each = options_.worker;
  const std::uint64_t cq_bytes =
      (std::uint64_t{each.send_cq_entries} + each.recv_cq_entries) * queue::cqe_bytes;
  memory::require_memlock(
      plan_.lcores.size() * (each.arena_bytes + cq_bytes),
      fmt::format("the arenas and completion queues of {} worker{} on {}", plan_.lcores.size(),
                  plan_.lcores.size() == 1 ? "" : "s", device_.info().name));
}

RunResult Runtime::run_each(const std::function<LoopResult(Worker&)>& body) {
  lcore::enforce(plan_.advice, options_.strict);
  for (const lcore::Advice& advice : plan_.advice) spdlog::warn("{}: {}", advice.text, advice.fix);
  require_memory();
  std::vector<lcore::LcoreLock> locks;
  if (options_.lock_lcores)
    for (const lcore::Lcore& lcore : plan_.lcores) locks.emplace_back(lcore.cpu, options_.lock_directory);

  RunResult result;
  {
    const OutOfTheWay out_of_the_way(plan_.cpus());
    std::vector<lcore::LcoreThread> threads;  // ends them all, whatever is thrown here
    threads.reserve(plan_.lcores.size());
    try {
      for (unsigned index = 0; index < plan_.lcores.size(); ++index) {
        {
          const std::lock_guard lock(mutex_);
          ++running_;
        }
        threads.emplace_back(plan_.lcores[index], lcore::ThreadOptions{.realtime = options_.realtime},
                             [this, index, &body] { run_worker(index, body); });
      }
      wait_for_workers(result);
    } catch (...) {
      request_stop();
      throw;
    }
  }
  if (failure_) rethrow_in_words(failure_->lcore, failure_->exception);
  for (const auto& slot : slots_) result.lcores.push_back(std::move(*slot->result));
  return result;
}

void Runtime::run_worker(unsigned index, const std::function<LoopResult(Worker&)>& body) {
  const lcore::Lcore& lcore = plan_.lcores[index];
  Slot& slot = *slots_[index];
  try {
    WorkerOptions options = options_.worker;
    options.index = index;
    options.lcore = lcore.cpu;
    options.node = static_cast<int>(lcore.node);
    const auto worker = std::make_unique<Worker>(device_, options);
    {
      const std::lock_guard lock(slot.mutex);
      slot.worker = worker.get();
    }
    // From here on request_stop() finds the worker; what came before is seen here.
    if (stop_) worker->request_stop();
    LcoreResult result;
    // Declared behind the worker: it stops being visible first, however this ends.
    struct Hide {
      Slot& slot;
      ~Hide() {
        const std::lock_guard lock(slot.mutex);
        slot.worker = nullptr;
      }
    } hide{slot};
    result.end = body(*worker);
    result.report = worker->report();
    result.notes = worker->notes();
    const std::lock_guard lock(slot.mutex);
    slot.result = std::move(result);
  } catch (...) {
    fail(lcore.cpu, std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  --running_;
  ended_.notify_all();
}

void Runtime::fail(unsigned lcore, std::exception_ptr exception) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = Failure{lcore, std::move(exception)};
  }
  request_stop();
}

void Runtime::wait_for_workers(RunResult& result) {
  std::optional<lcore::SignalGuard> signals;
  if (options_.handle_signals) signals.emplace(nullptr);

  const Clock::time_point begin = Clock::now();
  const nanoseconds tick(std::max<std::uint64_t>(options_.tick_ns, 1));
  Clock::time_point next_tick = begin + tick;
  std::optional<StopCause> cause;
  const auto stop_for = [&](StopCause why) {
    if (!cause) cause = why;
    request_stop();
  };
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, look_every, [&] { return running_ == 0; })) {
    lock.unlock();
    if (!cause && stop_) cause = StopCause::requested;
    if (signals) {
      if (const int signal = signals->wait(0); signal != 0) {
        result.signal = signal;
        spdlog::info(
            "SIG{}: draining what is in flight, for at most {} ms; once more ends the process at once",
            ::sigabbrev_np(signal), options_.worker.drain_ns / 1'000'000);
        stop_for(StopCause::signal);
      }
    }
    const Clock::time_point now = Clock::now();
    if (options_.max_duration_ns != 0 && now - begin >= nanoseconds(options_.max_duration_ns))
      stop_for(StopCause::duration);
    if (options_.on_tick && now >= next_tick) {
      options_.on_tick(*this);
      next_tick += tick * ((now - next_tick) / tick + 1);
    }
    lock.lock();
  }
  result.cause = cause.value_or(stop_ ? StopCause::requested : StopCause::workers_ended);
}

}  // namespace pollen::worker
