// A worker that sleeps is woken by whatever it has to do. The sleep's own limit is far beyond what
// the tests allow, so that a missed wake-up fails them.
#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "pollen/worker/loop.hpp"
#include "small_worker.hpp"

using namespace pollen::worker;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds sleep_limit{60};
constexpr std::chrono::seconds long_before{30};

struct Sleeper {
  std::function<void(Worker&)> on_start = [](Worker&) {};
  std::size_t received = 0;

  void start(Worker& worker) { on_start(worker); }
  unsigned poll(Worker&) { return 0; }
  void stop(Worker&) {}
  void on_receive(Worker& worker, std::span<const pollen::queue::Completion> completions) {
    received += completions.size();
    worker.request_stop();
  }
};

WorkerOptions sleepy() {
  WorkerOptions options = small_worker();
  options.idle = pollen::lcore::Idle::sleep;
  options.sleep_after_turns = 2;
  options.max_sleep_ns = std::chrono::nanoseconds(sleep_limit).count();
  return options;
}

// Runs a sleeping worker, does `wake` once it has gone to sleep, and waits until it has ended.
void sleep_and_wake(Sleeper& app, const std::function<void(Worker&)>& wake, bool in_loop = false) {
  pollen::fake::Device device(in_loop);
  std::atomic<Worker*> ready{nullptr};
  std::atomic<bool> done{false};
  std::thread thread([&] {
    Worker worker(device, sleepy());
    ready = &worker;
    run_loop(worker, app);
    while (!done) std::this_thread::yield();
  });
  while (ready == nullptr) std::this_thread::yield();
  Worker& worker = *ready.load();
  while (fake_port(worker).arms == 0) std::this_thread::yield();
  const Clock::time_point begin = Clock::now();
  wake(worker);
  done = true;
  thread.join();
  CHECK(Clock::now() - begin < long_before);
}

}  // namespace

TEST_SUITE("worker.idle") {
  TEST_CASE("a message wakes a sleeping worker") {
    Sleeper app;
    std::atomic<bool> ran{false};
    sleep_and_wake(app, [&](Worker& worker) {
      CHECK(worker.post([&] {
        ran = true;
        worker.request_stop();
      }));
    });
    CHECK(ran);
  }

  TEST_CASE("a request to stop wakes a sleeping worker") {
    Sleeper app;
    sleep_and_wake(app, [](Worker& worker) { worker.request_stop(); });
  }

  TEST_CASE("what the device has to say wakes a sleeping worker") {
    Sleeper app;
    app.on_start = [](Worker& worker) {
      Qp& qp = worker.create_qp({});
      qp.post_receive(sge(worker));
      qp.publish_receives();
    };
    sleep_and_wake(
        app, [](Worker& worker) { fake_port(worker).arrive(); }, true);
    CHECK(app.received == 1);
  }

  TEST_CASE("a descriptor that becomes ready wakes a sleeping worker") {
    Sleeper app;
    const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    app.on_start = [fd](Worker& worker) {
      worker.fds().add(fd, EPOLLIN, [&worker, fd](std::uint32_t) {
        worker.fds().remove(fd);
        worker.request_stop();
      });
    };
    sleep_and_wake(app, [fd](Worker&) {
      const std::uint64_t one = 1;
      CHECK(::write(fd, &one, sizeof one) == sizeof one);
    });
    ::close(fd);
  }

  TEST_CASE("a timer wakes a sleeping worker") {
    Sleeper app;
    Timer timer;
    app.on_start = [&timer](Worker& worker) {
      timer = worker.after(20'000'000, [&timer, &worker] {
        timer.cancel();  // it would outlive the worker otherwise
        worker.request_stop();
      });
    };
    sleep_and_wake(app, [](Worker&) {});
  }

  TEST_CASE("requests that were deferred are rung before a sleep, and completions are not slept on") {
    Sleeper app;
    std::atomic<Qp*> qp{nullptr};
    app.on_start = [&qp](Worker& worker) {
      qp = &worker.create_qp({});
      stage(worker, *qp);
      worker.defer(*qp);
    };
    sleep_and_wake(app, [&](Worker& worker) {
      CHECK(fake_qp(*qp).doorbells() == 1);
      worker.request_stop();
    });
  }

  TEST_CASE("time asleep is idle time, to the cycle and not by estimate") {
    pollen::fake::Device device;
    WorkerOptions options = sleepy();
    options.max_sleep_ns = 2'000'000;
    Worker worker(device, options);
    const auto idle = [&] { return worker.report().counters.cycles(pollen::probe::Phase::idle); };
    CHECK(idle() == 0);
    worker.idle(1);
    CHECK(idle() == 0);
    worker.idle(2);
    CHECK(pollen::probe::tsc_scale().to_ns(idle()) >= 2'000'000);
  }

  TEST_CASE("spinning and pausing workers never arm the device") {
    for (const auto idle : {pollen::lcore::Idle::spin, pollen::lcore::Idle::pause}) {
      pollen::fake::Device device;
      WorkerOptions options = sleepy();
      options.idle = idle;
      Worker worker(device, options);
      for (std::uint32_t empty = 1; empty < 5000; ++empty) worker.idle(empty);
      CHECK(fake_port(worker).arms == 0);
    }
  }
}
