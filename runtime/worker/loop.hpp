// The loop that runs an app on a worker, to completion and without a pause. A template, so that the
// app's functions are inlined into it.
//
//   struct MyApp {
//     void start(Worker&);      // once, before the first turn: create QPs, connect
//     unsigned poll(Worker&);   // once per turn; returns how much it did, 0: nothing
//     void stop(Worker&);       // once, when the loop is to end: post nothing new from now on
//     // Optional:
//     void on_receive(Worker&, std::span<const queue::Completion>);  // of the receive CQ
//     void on_sent(Worker&, std::span<const queue::Completion>);     // of the send CQ
//     void on_event(Worker&, const driver::Event&);                  // asynchronous, of the device
//     bool drained(Worker&);    // after stop(): true once nothing is left to do
//   };
//
// A turn: one TSC read; the device's own work (software NIC only); receive CQ, at most 64
// completions, and on_receive; the doorbells that handlers deferred; send CQ and on_sent; poll; due
// timers; every 64 turns the mailbox, and every 100 µs file descriptors. A turn that did nothing
// ends as the idle policy says.
//
// What an app leaves out. Without on_receive the loop leaves the receive CQ alone: it is the app's
// to poll. Without on_sent completions are retired unseen, but a failed one ends the run with an
// Error that names it. Without on_event the events that break everything (cq_overrun, device_fatal)
// end it likewise.
//
// The end. Worker::request_stop() ends the loop after the turn: stop(), then turns until nothing is
// in flight and drained() is true, for at most WorkerOptions::drain_ns. In these turns poll() is
// called only of an app that has drained(), and failed completions are nobody's error. If the stop
// is asked for before the start, none of the app's functions is called.
//
// Errors: whatever the app throws leaves run(); stop() is not called then.
//
// What the probe's phases mean here: poll_productive and poll_empty are the polls of the two CQs by
// whether they found something; post is the deferred doorbells and what a PostSample covers; device is
// the device's own work on this core (software NIC only); app is the rest of the turn: handlers, poll,
// timers, mailbox, descriptors; idle is pausing, exactly measured sleep, and what lies between turns.
// Outside of a timed turn the loop reads the TSC once.
//
// Thread rules: the worker's owner.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <concepts>
#include <cstdint>
#include <span>

#include "pollen/base/error.hpp"
#include "pollen/worker/worker.hpp"

namespace pollen::worker {

template <class A>
concept App = requires(A& app, Worker& worker) {
  app.start(worker);
  { app.poll(worker) } -> std::convertible_to<unsigned>;
  app.stop(worker);
};

struct LoopResult {
  std::uint64_t in_flight = 0;  // requests that had not completed in drain_ns
  bool drained = true;          // the app too
};

template <App A>
class Loop {
 public:
  Loop(Worker& worker, A& app) : worker_(worker), app_(app) {}

  // From start() to the end of the drain.
  LoopResult run() {
    if (worker_.stopping()) return {};
    app_.start(worker_);
    worker_.preemption().restart();
    for (std::uint32_t empty = 0; !worker_.stopping();) step(empty);
    app_.stop(worker_);
    return drain();
  }

  // One turn, for those who have a loop of their own; they call start() and stop() themselves.
  // Returns how much was done.
  unsigned turn() {
    probe::TurnTimer& timer = worker_.turn_timer();
    worker_.begin_turn(probe::now_cycles());
    unsigned work = worker_.progress() ? 1 : 0;
    work += receive();
    worker_.flush();
    work += reap();
    if (polls()) work += static_cast<unsigned>(app_.poll(worker_));
    work += worker_.run_timers();
    if (worker_.housekeeping_due()) [[unlikely]] {
      work += worker_.housekeeping();
      while (const auto event = worker_.next_event()) report(*event);
    }
    timer.lap(probe::Phase::app);
    return work;
  }

 private:
  using Completions = std::span<const queue::Completion>;
  static constexpr bool has_on_receive = requires(A & app, Worker& worker, Completions completions) {
    app.on_receive(worker, completions);
  };
  static constexpr bool has_on_sent = requires(A & app, Worker& worker, Completions completions) {
    app.on_sent(worker, completions);
  };
  static constexpr bool has_on_event = requires(A & app, Worker& worker, const driver::Event& event) {
    app.on_event(worker, event);
  };
  static constexpr bool has_drained = requires(A & app, Worker& worker) {
    { app.drained(worker) } -> std::convertible_to<bool>;
  };

  void step(std::uint32_t& empty) {
    if (turn() != 0)
      empty = 0;
    else
      worker_.idle(++empty);
  }

  bool polls() const noexcept { return has_drained || !draining_; }

  unsigned receive() {
    if constexpr (has_on_receive) {
      const Completions received = worker_.take_received();
      if (!received.empty()) {
        app_.on_receive(worker_, received);
        worker_.turn_timer().lap(probe::Phase::app);
      }
      return static_cast<unsigned>(received.size());
    }
    return 0;
  }

  unsigned reap() {
    const Completions sent = worker_.take_sent();
    if (sent.empty()) return 0;
    if constexpr (has_on_sent) {
      app_.on_sent(worker_, sent);
      worker_.turn_timer().lap(probe::Phase::app);
    } else if (!draining_) {
      for (const queue::Completion& completion : sent)
        if (!completion.ok()) [[unlikely]]
          fail("send", queue::describe(completion), "Give the app an on_sent() to handle such failures");
    }
    return static_cast<unsigned>(sent.size());
  }

  void report(const driver::Event& event) {
    if constexpr (has_on_event) {
      app_.on_event(worker_, event);
    } else if (event.kind == driver::Event::Kind::cq_overrun ||
               event.kind == driver::Event::Kind::device_fatal) {
      fail("go on", event.text, {});
    }
  }

  [[noreturn]] void fail(const char* attempted, std::string why, std::string remedy) {
    throw Error(EIO, {.attempted = attempted,
                      .on = fmt::format("{}, lcore {}", worker_.device().info().name, worker_.lcore()),
                      .why = std::move(why),
                      .remedy = std::move(remedy)});
  }

  bool app_drained() {
    if constexpr (has_drained) return app_.drained(worker_);
    return true;
  }

  LoopResult drain() {
    draining_ = true;
    const std::uint64_t begin_ns = worker_.clock_ns();
    LoopResult result;
    for (std::uint32_t empty = 0;;) {
      step(empty);
      result = {.in_flight = worker_.in_flight(), .drained = app_drained()};
      if (result.in_flight == 0 && result.drained) break;
      if (worker_.clock_ns() - begin_ns > worker_.options().drain_ns) break;
    }
    worker_.flush();
    worker_.preemption().settle();
    worker_.publish();
    return result;
  }

  Worker& worker_;
  A& app_;
  bool draining_ = false;
};

template <App A>
LoopResult run_loop(Worker& worker, A& app) {
  return Loop<A>(worker, app).run();
}

}  // namespace pollen::worker
