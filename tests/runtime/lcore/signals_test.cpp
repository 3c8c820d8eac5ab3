#include "pollen/lcore/signals.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

#include "child.hpp"
#include "expect.hpp"
#include "pollen/lcore/affinity.hpp"
#include "pollen/lcore/thread.hpp"

using namespace pollen::lcore;

namespace {

constexpr std::int64_t long_ns = 10'000'000'000;

void sleep_ms(long ms) {
  const timespec time{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  nanosleep(&time, nullptr);
}

}  // namespace

TEST_SUITE("lcore.signals") {
  TEST_CASE("the first signal stops cleanly: the callback runs and wait names the signal") {
    for (const int signal : {SIGINT, SIGTERM}) {
      Child child([](const Child::Say& say) {
        int stops = 0;
        SignalGuard guard([&] { ++stops; });
        say("ready");
        const int got = guard.wait(long_ns);
        return stops == 1 ? got : 100;
      });
      REQUIRE(child.hear() == "ready");
      child.kill(signal);
      CHECK(child.finish() == signal);
    }
  }

  TEST_CASE("without a signal wait returns 0 when its time is up") {
    int stops = 0;
    SignalGuard guard([&] { ++stops; });
    CHECK(guard.wait(0) == 0);
    CHECK(guard.wait(1'000'000) == 0);
    CHECK(guard.wait(-5) == 0);
    CHECK(stops == 0);
  }

  TEST_CASE("a signal is reported once") {
    int stops = 0;
    SignalGuard guard([&] { ++stops; });
    REQUIRE(kill(getpid(), SIGINT) == 0);
    CHECK(guard.wait(long_ns) == SIGINT);
    CHECK(guard.wait(0) == 0);
    CHECK(stops == 1);
  }

  TEST_CASE("a signal that comes twice at once, as timeout(1) sends it, is one") {
    SignalGuard guard([] {});
    REQUIRE(kill(getpid(), SIGTERM) == 0);
    REQUIRE(kill(getpid(), SIGTERM) == 0);
    CHECK(guard.wait(long_ns) == SIGTERM);
  }

  TEST_CASE("the second signal ends the process at once, whatever the main thread is doing") {
    Child child([](const Child::Say& say) {
      SignalGuard guard([&] { say("stopping"); });
      say("ready");
      guard.wait(long_ns);
      sleep_ms(60'000);  // a drain that does not end
      return 0;
    });
    REQUIRE(child.hear() == "ready");
    child.kill(SIGINT);
    REQUIRE(child.hear() == "stopping");
    sleep_ms(200);
    child.kill(SIGTERM);
    CHECK(child.finish() == 128 + SIGTERM);
  }

  TEST_CASE("the second signal ends a process whose workers run, since they have it blocked") {
    Child child([](const Child::Say& say) {
      std::atomic<bool> stop{false};
      SignalGuard guard([&] { say("stopping"); });
      LcoreThread worker({.cpu = *affinity().begin()}, {}, [&] {
        while (!stop) sleep_ms(1);
      });
      say("ready");
      guard.wait(long_ns);
      worker.join();
      return 0;
    });
    REQUIRE(child.hear() == "ready");
    child.kill(SIGTERM);
    REQUIRE(child.hear() == "stopping");
    sleep_ms(200);
    child.kill(SIGINT);
    CHECK(child.finish() == 128 + SIGINT);
  }

  TEST_CASE("signals that were blocked at start are heard nonetheless") {
    Child child([](const Child::Say& say) {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, nullptr);
      SignalGuard guard([] {});
      say("ready");
      return guard.wait(long_ns);
    });
    REQUIRE(child.hear() == "ready");
    child.kill(SIGINT);
    CHECK(child.finish() == SIGINT);
  }

  TEST_CASE("afterwards handlers and mask are what they were, and a new guard starts afresh") {
    struct sigaction before {};
    sigaction(SIGTERM, nullptr, &before);
    {
      SignalGuard guard([] {});
      struct sigaction during {};
      sigaction(SIGTERM, nullptr, &during);
      CHECK((during.sa_handler != before.sa_handler));
      REQUIRE(kill(getpid(), SIGTERM) == 0);
      CHECK(guard.wait(long_ns) == SIGTERM);
    }
    struct sigaction after {};
    sigaction(SIGTERM, nullptr, &after);
    CHECK((after.sa_handler == before.sa_handler));
    SignalGuard again([] {});
    CHECK(again.wait(0) == 0);
  }

  TEST_CASE("a second guard in one process is refused") {
    SignalGuard guard([] {});
    CHECK(has(error_of([] { SignalGuard other([] {}); }), "another SignalGuard"));
  }
}
