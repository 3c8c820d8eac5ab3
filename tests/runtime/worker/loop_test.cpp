#include "pollen/worker/loop.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "small_worker.hpp"

using namespace pollen::worker;
using pollen::queue::Completion;
using Completions = std::span<const Completion>;

namespace {

// Stops after some turns, and writes down what it was called for.
struct Plain {
  std::string trace;
  unsigned turns = 3;

  void start(Worker&) { trace += '<'; }
  unsigned poll(Worker& worker) {
    trace += 'p';
    if (--turns == 0) worker.request_stop();
    return 1;
  }
  void stop(Worker&) { trace += '>'; }
};

// Answers each message with three requests.
struct Echo {
  std::string trace;
  Qp* qp = nullptr;
  std::uint32_t doorbells_in_handler = 99;
  std::uint32_t doorbells_when_sent = 99;

  void start(Worker&) {}
  unsigned poll(Worker&) {
    trace += 'p';
    return 0;
  }
  void stop(Worker&) {}
  void on_receive(Worker& worker, Completions received) {
    trace += 'r';
    CHECK(received.size() == 1);
    CHECK(received[0].byte_len == 64);
    for (int i = 0; i < 3; ++i) {
      stage(worker, *qp);
      worker.defer(*qp);
    }
    doorbells_in_handler = fake_qp(*qp).doorbells();
  }
  void on_sent(Worker&, Completions) {
    trace += 's';
    doorbells_when_sent = fake_qp(*qp).doorbells();
  }
};

// Has requests in flight when it is stopped; `finish` is called in each turn of the drain.
struct InFlight {
  std::function<void(Qp&)> finish = [](Qp&) {};
  std::function<bool()> done = [] { return true; };
  Qp* qp = nullptr;
  bool stopped = false;
  unsigned polls_after_stop = 0;
  std::size_t failed = 0;

  void start(Worker& worker) {
    qp = &worker.create_qp({});
    for (int i = 0; i < 3; ++i) stage(worker, *qp);
    worker.defer(*qp);
  }
  unsigned poll(Worker& worker) {
    if (stopped) {
      ++polls_after_stop;
      finish(*qp);
    } else {
      worker.request_stop();
    }
    return 0;
  }
  void stop(Worker&) { stopped = true; }
  bool drained(Worker&) { return done(); }
  void on_sent(Worker&, Completions sent) {
    for (const Completion& completion : sent) failed += !completion.ok();
  }
};

}  // namespace

TEST_SUITE("worker.loop") {
  TEST_CASE("start comes first, then poll once per turn, then stop") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    Plain app;
    const LoopResult result = run_loop(worker, app);
    CHECK(app.trace == "<ppp>");
    CHECK(result.in_flight == 0);
    CHECK(result.drained);
    CHECK(worker.report().counters.turns == 4);  // one of them looked whether anything was in flight
  }

  TEST_CASE("a stop that was asked for before the start calls nothing of the app") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    worker.request_stop();
    Plain app;
    run_loop(worker, app);
    CHECK(app.trace.empty());
  }

  TEST_CASE("a turn: the device, received, doorbells, sent, poll, timers") {
    pollen::fake::Device device(true);
    Worker worker(device, small_worker());
    Echo app;
    app.qp = &worker.create_qp({});
    CHECK(app.qp->post_receive(sge(worker)));
    app.qp->publish_receives();
    const Timer timer = worker.after(0, [&] { app.trace += 't'; });
    fake_port(worker).arrive();
    Loop loop(worker, app);
    CHECK(loop.turn() >= 4);
    CHECK(fake_port(worker).progress_calls == 1);
    CHECK(app.trace == "rspt");
    CHECK(loop.turn() == 0);
    CHECK(app.trace == "rsptp");
  }

  TEST_CASE("deferred requests go out after the handlers, with one doorbell per QP and turn") {
    pollen::fake::Device device(true);
    Worker worker(device, small_worker());
    Echo app;
    app.qp = &worker.create_qp({});
    CHECK(app.qp->post_receive(sge(worker)));
    app.qp->publish_receives();
    fake_port(worker).arrive();
    Loop loop(worker, app);
    loop.turn();
    CHECK(app.doorbells_in_handler == 0);
    CHECK(app.doorbells_when_sent == 1);
    loop.turn();
    CHECK(fake_qp(*app.qp).doorbells() == 1);
    CHECK(app.qp->sq().posted_total() == 3);
  }

  TEST_CASE("an app without on_receive polls the receive queue itself") {
    struct Own : Plain {
      std::uint32_t got = 0;
      unsigned poll(Worker& worker) {
        std::array<Completion, 4> completions{};
        return got += worker.recv_cq().poll(completions.data(), 4);
      }
    };
    pollen::fake::Device device(true);
    Worker worker(device, small_worker());
    Own app;
    Qp& qp = worker.create_qp({});
    CHECK(qp.post_receive(sge(worker)));
    qp.publish_receives();
    fake_port(worker).arrive();
    Loop loop(worker, app);
    loop.turn();
    CHECK(app.got == 1);
  }

  TEST_CASE("messages run within 64 turns, and count as work") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    Echo app;
    int ran = 0;
    CHECK(worker.post([&] { ++ran; }));
    Loop loop(worker, app);
    unsigned work = 0;
    for (int turn = 0; turn < 64; ++turn) work += loop.turn();
    CHECK(ran == 1);
    CHECK(work == 1);
  }

  TEST_CASE("a failed send of an app without on_sent ends the run and says which and why") {
    struct Careless : Plain {
      void start(Worker& worker) {
        Qp& qp = worker.create_qp({});
        stage(worker, qp, 17);
        qp.sq().ring_doorbell();
        fake_qp(qp).fail(MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
      }
    };
    pollen::fake::Device device;
    device.behaviour.hold = true;
    Worker worker(device, small_worker());
    Careless app;
    const std::string error = error_of([&] { run_loop(worker, app); });
    CHECK(has(error, "cannot send on fake0, lcore 0: "));
    CHECK(has(error, "SEND of wr_id 0x11 on QP 256 failed: remote access error"));
    CHECK(has(error, "on_sent()"));
    CHECK(app.trace.empty());  // neither polled nor stopped
  }

  TEST_CASE("an event that breaks the device ends the run of an app that doesn't look at events") {
    struct Endless : Plain {
      unsigned poll(Worker&) { return 1; }
    };
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    fake_port(worker).event = {pollen::driver::Event::Kind::device_fatal, 0, "the device was reset"};
    Endless app;
    CHECK(has(error_of([&] { run_loop(worker, app); }), "the device was reset"));
  }

  TEST_CASE("an app with on_event gets the event and goes on") {
    struct Watching : Plain {
      std::string heard;
      unsigned poll(Worker&) { return 0; }
      void on_event(Worker& worker, const pollen::driver::Event& event) {
        heard = event.text;
        worker.request_stop();
      }
    };
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    fake_port(worker).event = {pollen::driver::Event::Kind::port_down, 1, "port 1 is down"};
    Watching app;
    run_loop(worker, app);
    CHECK(app.heard == "port 1 is down");
  }

  TEST_CASE("a stop waits for what is in flight") {
    pollen::fake::Device device;
    device.behaviour.hold = true;
    Worker worker(device, small_worker());
    InFlight app;
    app.finish = [&](Qp& qp) {
      if (app.polls_after_stop >= 50) fake_qp(qp).complete();
    };
    const LoopResult result = run_loop(worker, app);
    CHECK(result.in_flight == 0);
    CHECK(result.drained);
    CHECK(app.polls_after_stop >= 50);
    CHECK(app.failed == 0);
    CHECK(worker.report().counters.wrs == 3);
  }

  TEST_CASE("a stop waits for an app that has something left to do, and polls it") {
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    InFlight app;
    app.done = [&] { return app.polls_after_stop == 20; };
    const LoopResult result = run_loop(worker, app);
    CHECK(result.drained);
    CHECK(app.polls_after_stop == 20);
  }

  TEST_CASE("a stop does not wait for ever, awake or asleep: it says what was left") {
    for (const auto idle : {pollen::lcore::Idle::spin, pollen::lcore::Idle::sleep}) {
      pollen::fake::Device device;
      device.behaviour.hold = true;
      WorkerOptions options = small_worker();
      options.idle = idle;
      options.sleep_after_turns = 1;
      options.max_sleep_ns = 600'000'000'000;
      options.drain_ns = 5'000'000;
      Worker worker(device, options);
      InFlight app;
      const LoopResult result = run_loop(worker, app);
      CHECK(result.in_flight == 3);
      CHECK(result.drained);
    }
  }

  TEST_CASE("requests that fail while draining are handed to the app and end nothing") {
    pollen::fake::Device device;
    device.behaviour.hold = true;
    Worker worker(device, small_worker());
    InFlight app;
    app.finish = [](Qp& qp) { fake_qp(qp).fail(MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR); };
    const LoopResult result = run_loop(worker, app);
    CHECK(result.in_flight == 0);
    CHECK(app.failed == 3);
  }

  TEST_CASE("what an app throws comes out of run, and stop is not called") {
    struct Throwing : Plain {
      unsigned poll(Worker&) { throw std::runtime_error("out of ideas"); }
    };
    pollen::fake::Device device;
    Worker worker(device, small_worker());
    Throwing app;
    CHECK_THROWS_WITH(run_loop(worker, app), "out of ideas");
    CHECK(app.trace == "<");
  }

  TEST_CASE("posting inside a sample is booked as posting, per request") {
    struct Poster : Plain {
      Qp* qp = nullptr;
      void start(Worker& worker) { qp = &worker.create_qp({}); }
      unsigned poll(Worker& worker) {
        const auto sample = worker.sample_post(*qp);
        auto burst = qp->send_burst();
        for (int i = 0; i < 4; ++i) burst.send(sge(worker));
        burst.ring();
        if (--turns == 0) worker.request_stop();
        return 4;
      }
    };
    pollen::fake::Device device;
    WorkerOptions options = small_worker();
    options.timing_period = 1;
    Worker worker(device, options);
    Poster app;
    app.turns = 100;
    run_loop(worker, app);
    const auto counters = worker.report().counters;
    CHECK(counters.wrs == 400);
    CHECK(counters.post_sample_wrs > 0);
    CHECK(counters.post_sample_wrs % 4 == 0);
    CHECK(counters.post_sample_wrs <= 400);
    CHECK(counters.cycles(pollen::probe::Phase::post) > 0);
    CHECK(counters.cqes > 0);
  }

  TEST_CASE("the time that the device takes in the loop is known apart") {
    pollen::fake::Device in_loop(true);
    pollen::fake::Device apart(false);
    WorkerOptions options = small_worker();
    options.timing_period = 1;
    Worker busy(in_loop, options);
    Worker free(apart, options);
    Plain one;
    Plain two;
    run_loop(busy, one);
    run_loop(free, two);
    CHECK(busy.counters().snapshot().cycles(pollen::probe::Phase::device) > 0);
    CHECK(free.counters().snapshot().cycles(pollen::probe::Phase::device) == 0);
  }
}
