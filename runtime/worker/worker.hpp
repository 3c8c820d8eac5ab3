// A worker: everything that one core needs to run RDMA apps by itself. Its port of the device, a
// protection domain with one registered arena, one completion queue for sends and one for receives,
// the QPs, timers, mailbox and counters. Nothing in it is shared; the loop (loop.hpp) drives it.
//
// Memory: `new Worker` takes whole pages, which the kernel puts on the node of the thread that
// makes it; so make it on the thread that runs it.
//
// Deferred doorbells: a handler stages requests with SendBurst::defer() and calls defer(qp). The
// loop rings each such QP once per turn, when the receive handlers are done. What is staged later in
// a turn (sent handlers, poll, timers) goes out with the replies of the next turn, or before the
// worker sleeps.
//
// Units: bytes, nanoseconds of the time stamp counter. Ownership: the worker owns its QPs and all
// else it hands out references to; the device is the caller's and outlives it. Whatever holds a
// Timer or a Qp& of a worker goes before the worker does.
// Thread rules: owner only (the thread that made it), but for post(), request_stop(), stopping(),
// report() and the constants, which any thread may use while the worker lives.
// Errors: the control path throws Error.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/memory/arena.hpp"
#include "pollen/probe/counters.hpp"
#include "pollen/probe/hw_counters.hpp"
#include "pollen/probe/preemption.hpp"
#include "pollen/probe/report.hpp"
#include "pollen/probe/turn_timer.hpp"
#include "pollen/queue/qp.hpp"
#include "pollen/worker/fd_watch.hpp"
#include "pollen/worker/mailbox.hpp"
#include "pollen/worker/options.hpp"
#include "pollen/worker/post_sample.hpp"
#include "pollen/worker/relax.hpp"
#include "pollen/worker/timer.hpp"

namespace pollen::worker {

class Worker;

// A QP of a worker's; the worker owns it.
class Qp final : public queue::Qp {
 public:
  using queue::Qp::Qp;

 private:
  friend class Worker;
  bool dirty_ = false;
};

class alignas(128) Worker {
 public:
  static constexpr std::uint32_t batch = 64;  // completions per poll

  Worker(driver::Device& device, const WorkerOptions& options);
  // Closes the QPs that are left; each may take up to a second on a device that does not answer.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  static void* operator new(std::size_t bytes, std::align_val_t align);
  static void operator delete(void* memory, std::size_t bytes, std::align_val_t align) noexcept;

  const WorkerOptions& options() const noexcept { return options_; }
  unsigned index() const noexcept { return options_.index; }
  unsigned lcore() const noexcept { return options_.lcore; }
  driver::Device& device() noexcept { return device_; }
  driver::Port& port() noexcept { return *port_; }
  driver::Pd& pd() noexcept { return *pd_; }
  memory::Arena& arena() noexcept { return arena_; }
  const driver::Region& region() const noexcept { return *region_; }  // the arena's
  queue::CompletionQueue& send_cq() noexcept { return *send_cq_; }
  queue::CompletionQueue& recv_cq() noexcept { return *recv_cq_; }

  // Sentences about what differs from what was asked for, and about the arena's pages.
  const std::vector<std::string>& notes() const noexcept { return notes_; }

  // --- queue pairs ---

  // signal_every: see queue::Qp. The config is cut to the device's limits: see notes(), and the
  // rings for what the QP got.
  Qp& create_qp(driver::QpConfig config, std::uint32_t signal_every = 0);
  // Closes the QP and frees it: see queue::Qp::close, whose result it returns. Completions of it
  // that were polled before may still be handed out in the same turn.
  bool destroy_qp(Qp& qp, std::uint64_t timeout_ns = 1'000'000'000) noexcept;
  std::size_t qp_count() const noexcept { return qps_.size(); }

  // The loop rings `qp` and publishes its receives, once, at its next flush.
  void defer(Qp& qp) noexcept {
    if (qp.dirty_) return;
    qp.dirty_ = true;
    dirty_.push_back(&qp);  // there is room for every QP
  }

  PostSample sample_post(const queue::Qp& qp) noexcept { return {timer_, qp.sq()}; }

  // Requests on all send queues that have not completed.
  std::uint64_t in_flight() const noexcept;

  // --- time ---

  // Of this turn.
  std::uint64_t now_ns() const noexcept { return now_ns_; }
  // Of this moment: a reading of the time stamp counter.
  std::uint64_t clock_ns() const noexcept { return scale_.to_ns(probe::now_cycles()); }

  // From this moment on; see timer.hpp.
  [[nodiscard]] Timer after(std::uint64_t delay_ns, Timers::Callback callback) {
    return timers_.after(clock_ns(), delay_ns, std::move(callback));
  }
  [[nodiscard]] Timer every(std::uint64_t period_ns, Timers::Callback callback) {
    return timers_.every(clock_ns(), period_ns, std::move(callback));
  }

  // --- the outside ---

  // Looked at about every 100 µs, and while asleep. See fd_watch.hpp.
  FdWatch& fds() noexcept { return fds_; }

  // Any thread: `message` runs in the loop. False: the mailbox is full.
  bool post(Mailbox::Message message) { return mailbox_.post(std::move(message)); }

  // Any thread: the loop ends after its current turn, see loop.hpp. Not for signal handlers.
  void request_stop() noexcept {
    stop_.store(true, std::memory_order_relaxed);
    mailbox_.wake();
  }
  bool stopping() const noexcept { return stop_.load(std::memory_order_relaxed); }

  // --- probe ---

  // cqes and bytes_received (of receives) are counted as they are polled; wrs, doorbells and
  // bytes_sent (of all requests posted, READs included) are brought up to date every 10 ms, before
  // a sleep, and by publish(). Time asleep is idle time.
  probe::LcoreCounters& counters() noexcept { return counters_; }
  probe::TurnTimer& turn_timer() noexcept { return timer_; }
  probe::PreemptionDetector& preemption() noexcept { return preemption_; }
  void publish() noexcept;
  probe::LcoreReport report() const;  // any thread

  // --- for the loop, in this order ---

  void begin_turn(std::uint64_t now_cycles) noexcept {
    preemption_.turn(now_cycles);
    timer_.begin_turn(now_cycles);
    now_ns_ = scale_.to_ns(now_cycles);
  }
  // The device's share of the turn. True: something was done.
  bool progress() noexcept {
    if (progress_.function == nullptr) return false;
    const bool did = progress_();
    timer_.lap(probe::Phase::device);
    return did;
  }
  // Both: valid until the next of either.
  std::span<const queue::Completion> take_received() noexcept;
  std::span<const queue::Completion> take_sent() noexcept;
  void flush() noexcept {
    if (!dirty_.empty()) flush_dirty();
    timer_.lap_post(0);
  }
  unsigned run_timers() { return timers_.next_ns() <= now_ns_ ? timers_.run_due(now_ns_) : 0; }
  bool housekeeping_due() noexcept { return (++turns_ & (housekeeping_turns - 1)) == 0; }
  // Messages, file descriptors, counters. Returns how much was done.
  unsigned housekeeping();
  // Asynchronous events of the device; asks it every 10 ms.
  std::optional<driver::Event> next_event();

  // After the `empty_turns`-th turn in a row that did nothing.
  void idle(std::uint32_t empty_turns) noexcept {
    if (options_.idle == lcore::Idle::spin) return;
    if (options_.idle == lcore::Idle::sleep && empty_turns >= options_.sleep_after_turns && !timer_.timed())
      sleep();
    else
      relax(std::min(empty_turns, max_pauses));
  }

 private:
  static constexpr std::uint32_t housekeeping_turns = 64;  // a power of two
  static constexpr std::uint32_t max_pauses = 8;

  void sleep() noexcept;
  void flush_dirty() noexcept;
  std::span<const queue::Completion> take(queue::CompletionQueue& cq) noexcept {
    const std::uint32_t count = cq.poll(completions_.data(), batch);
    timer_.lap_poll(count);
    if (count != 0) counters_.cqes.add(count);
    return {completions_.data(), count};
  }
  std::unique_ptr<driver::Cq> make_cq(const char* which, std::uint32_t entries);
  void note(std::string text);

  // Hot.
  std::atomic<bool> stop_{false};
  std::uint32_t turns_ = 0;
  std::uint64_t now_ns_;
  const probe::TscScale scale_;
  driver::Progress progress_;
  std::vector<Qp*> dirty_;
  probe::LcoreCounters counters_;
  probe::TurnTimer timer_;
  probe::PreemptionDetector preemption_;
  Timers timers_;
  std::array<queue::Completion, batch> completions_{};

  const WorkerOptions options_;
  driver::Device& device_;
  std::vector<std::string> notes_;
  memory::Arena arena_;
  std::unique_ptr<driver::Port> port_;
  std::unique_ptr<driver::Pd> pd_;
  std::unique_ptr<driver::Region> region_;
  std::unique_ptr<driver::Cq> send_cq_control_;
  std::unique_ptr<driver::Cq> recv_cq_control_;
  std::unique_ptr<queue::CompletionQueue> send_cq_;
  std::unique_ptr<queue::CompletionQueue> recv_cq_;
  std::vector<std::unique_ptr<Qp>> qps_;
  FdWatch fds_;
  Mailbox mailbox_;
  probe::HwCounters hardware_;

  std::uint64_t next_look_ns_ = 0;
  std::uint64_t next_publish_ns_ = 0;
  std::uint64_t next_event_ns_ = 0;
  // Of QPs that are gone.
  std::uint64_t gone_wrs_ = 0;
  std::uint64_t gone_doorbells_ = 0;
  std::uint64_t gone_bytes_ = 0;
};

}  // namespace pollen::worker

namespace pollen {
using worker::Worker;
}
