#include "pollen/lcore/thread.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <numaif.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <stdexcept>

#include "child.hpp"
#include "expect.hpp"
#include "pollen/lcore/affinity.hpp"

using namespace pollen::lcore;

namespace {

Lcore last_allowed() {
  const CpuSet allowed = affinity();
  return {.cpu = *std::prev(allowed.end())};
}

}  // namespace

TEST_SUITE("lcore.thread") {
  TEST_CASE("the thread runs on its CPU alone, under its name, from the first line") {
    for (const unsigned cpu : affinity()) {
      int ran_on = -1;
      CpuSet mask;
      char name[16] = {};
      LcoreThread thread({.cpu = cpu}, {}, [&] {
        ran_on = sched_getcpu();
        mask = affinity();
        pthread_getname_np(pthread_self(), name, sizeof name);
      });
      CHECK(thread.cpu() == cpu);
      thread.join();
      CHECK(ran_on == static_cast<int>(cpu));
      CHECK(mask == CpuSet{cpu});
      CHECK(std::string(name) == fmt::format("lcore-{}", cpu));
    }
  }

  TEST_CASE("the creator's affinity and signal mask stay as they were") {
    const CpuSet before = affinity();
    sigset_t mask_before;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
    LcoreThread(last_allowed(), {}, [] {}).join();
    CHECK(affinity() == before);
    sigset_t mask_after;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM}) {
      CHECK(sigismember(&mask_before, signal) == sigismember(&mask_after, signal));
    }
  }

  TEST_CASE(
      "all signals are blocked in the thread, except its own faults, which crash handlers want to see") {
    sigset_t mask;
    sigemptyset(&mask);
    LcoreThread(last_allowed(), {}, [&] { pthread_sigmask(SIG_SETMASK, nullptr, &mask); }).join();
    for (const int signal :
         {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM, SIGPIPE, SIGCHLD, SIGRTMIN, SIGRTMAX}) {
      CAPTURE(signal);
      CHECK(sigismember(&mask, signal) == 1);
    }
    CHECK(sigismember(&mask, SIGSEGV) == 0);
  }

  TEST_CASE("memory comes from the node of the thread, whatever policy was inherited") {
    int mode = -1;
    LcoreThread(last_allowed(), {}, [&] {
      if (get_mempolicy(&mode, nullptr, 0, nullptr, 0) != 0) mode = -errno;
    }).join();
    if (mode == -ENOSYS || mode == -EPERM) {
      MESSAGE("skipped: this kernel or container does not let a memory policy be read");
      return;
    }
    CHECK((mode == MPOL_LOCAL || mode == MPOL_PREFERRED));
  }

  TEST_CASE("what the function throws, the joiner gets, once") {
    LcoreThread thread(last_allowed(), {}, [] { throw std::runtime_error("from within"); });
    CHECK_THROWS_WITH_AS(thread.join(), "from within", std::runtime_error);
    CHECK_NOTHROW(thread.join());
  }

  TEST_CASE("the destructor waits for the function and keeps its exception to itself") {
    bool done = false;
    {
      const LcoreThread thread(last_allowed(), {}, [&] {
        done = true;
        throw std::runtime_error("unheard");
      });
    }
    CHECK(done);
  }

  TEST_CASE("a moved thread is joined by its new owner, exception included") {
    LcoreThread first(last_allowed(), {}, [] { throw std::runtime_error("moved"); });
    LcoreThread second(std::move(first));
    CHECK_THROWS_WITH_AS(second.join(), "moved", std::runtime_error);
  }

  TEST_CASE("a CPU that cannot be had is refused by the constructor, and the function does not run") {
    bool ran = false;
    const std::string error = error_of([&] { LcoreThread({.cpu = 8191}, {}, [&] { ran = true; }); });
    CHECK(has(error, "cannot pin a thread to lcore 8191"));
    CHECK(!ran);
  }

  TEST_CASE("a realtime thread runs under SCHED_FIFO, or the refusal says what to do") {
    int policy = -1;
    const std::string error = error_of([&] {
      LcoreThread(last_allowed(), {.realtime = true}, [&] { policy = sched_getscheduler(0); }).join();
    });
    if (error == "no error") {
      CHECK((policy & ~SCHED_RESET_ON_FORK) == SCHED_FIFO);
    } else {
      MESSAGE("not permitted here, so only the refusal is checked");
      CHECK(policy == -1);
      CHECK(has(error, "CAP_SYS_NICE"));
    }
    CHECK(sched_getscheduler(0) == SCHED_OTHER);
  }

  TEST_CASE("without the privilege --realtime is refused with the ways to get it") {
    Child child([](const Child::Say& say) {
      const rlimit none{.rlim_cur = 0, .rlim_max = 0};
      if (setrlimit(RLIMIT_RTPRIO, &none) != 0) return 1;
      if (geteuid() == 0 && setuid(65534) != 0) return 2;
      bool ran = false;
      say(error_of([&] { LcoreThread(last_allowed(), {.realtime = true}, [&] { ran = true; }); }));
      return ran ? 3 : 0;
    });
    const auto error = child.hear();
    REQUIRE(error);
    CHECK(
        has(*error, fmt::format("cannot run under SCHED_FIFO (--realtime) on lcore {}", last_allowed().cpu)));
    CHECK(has(*error, "CAP_SYS_NICE"));
    CHECK(has(*error, "ulimit -r 1"));
    CHECK(child.finish() == 0);
  }

  TEST_CASE("the calling thread itself can settle on an lcore") {
    Child child([](const Child::Say&) {
      const Lcore lcore = last_allowed();
      settle_on(lcore, {});
      return affinity() == CpuSet{lcore.cpu} ? 0 : 1;
    });
    CHECK(child.finish() == 0);
  }
}
