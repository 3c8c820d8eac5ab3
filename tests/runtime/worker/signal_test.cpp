// Signals, in a process of its own.
#include <doctest/doctest.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <ctime>

#include "child.hpp"
#include "small_runtime.hpp"

using namespace pollen::worker;
using pollen::lcore::Child;

namespace {

void sleep_ms(long ms) {
  const timespec time{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  nanosleep(&time, nullptr);
}

// Has a request in flight when it is stopped; it completes `turns_to_complete` turns later, or never.
struct Server {
  const Child::Say& say;
  int turns_to_complete;
  Qp* qp = nullptr;
  bool stopped = false;

  void start(Worker& worker) {
    qp = &worker.create_qp({});
    stage(worker, *qp);
    worker.defer(*qp);
    say("ready");
  }
  unsigned poll(Worker&) {
    if (stopped && turns_to_complete-- == 0) fake_qp(*qp).complete();
    return 0;
  }
  void stop(Worker&) {
    stopped = true;
    say("stopping");
  }
  bool drained(Worker&) { return true; }
};

int serve(const TemporaryDirectory& locks, const Child::Say& say, int turns_to_complete,
          std::uint64_t drain_ns) {
  spdlog::set_level(spdlog::level::off);
  pollen::fake::Device device;
  device.behaviour.hold = true;
  RuntimeOptions options = small_runtime(locks);
  options.handle_signals = true;
  options.worker.drain_ns = drain_ns;
  Runtime runtime(device, small_plan(1), options);
  const RunResult result = runtime.run([&](unsigned) { return Server{say, turns_to_complete}; });
  say(to_text(result).starts_with("lcore") ? "table" : to_text(result).substr(0, 5));
  say(std::to_string(result.lcores[0].report.counters.wrs) + " posted, " +
      std::to_string(result.lcores[0].end.in_flight) + " in flight");
  return result.cause == StopCause::signal ? result.signal : 100;
}

}  // namespace

TEST_SUITE("worker.signal") {
  TEST_CASE("the first signal drains what is in flight and lets the statistics be printed") {
    for (const int signal : {SIGINT, SIGTERM}) {
      TemporaryDirectory locks;
      Child child([&](const Child::Say& say) { return serve(locks, say, 1000, 20'000'000'000); });
      REQUIRE(child.hear() == "ready");
      child.kill(signal);
      CHECK(child.hear() == "stopping");
      child.hear();
      CHECK(child.hear() == "1 posted, 0 in flight");
      CHECK(child.finish() == signal);
    }
  }

  TEST_CASE("what does not drain is given up when the time is over, and the statistics say so") {
    TemporaryDirectory locks;
    Child child([&](const Child::Say& say) { return serve(locks, say, -1, 20'000'000); });
    REQUIRE(child.hear() == "ready");
    child.kill(SIGINT);
    CHECK(child.hear() == "stopping");
    child.hear();
    CHECK(child.hear() == "1 posted, 1 in flight");
    CHECK(child.finish() == SIGINT);
  }

  TEST_CASE("the second signal ends the process while it drains") {
    TemporaryDirectory locks;
    Child child([&](const Child::Say& say) { return serve(locks, say, -1, 600'000'000'000); });
    REQUIRE(child.hear() == "ready");
    child.kill(SIGINT);
    REQUIRE(child.hear() == "stopping");
    sleep_ms(200);  // signals closer together than 100 ms count as one
    child.kill(SIGTERM);
    CHECK(child.finish() == 128 + SIGTERM);
  }
}
