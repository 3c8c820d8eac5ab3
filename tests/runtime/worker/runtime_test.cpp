#include "pollen/worker/runtime.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

#include "child.hpp"
#include "pollen/lcore/affinity.hpp"
#include "pollen/probe/prometheus.hpp"
#include "small_runtime.hpp"

using namespace pollen::worker;
namespace lcore = pollen::lcore;

namespace {

struct Counting {
  std::atomic<unsigned>& started;
  std::atomic<unsigned>& stopped;

  void start(Worker&) { ++started; }
  unsigned poll(Worker&) { return 0; }
  void stop(Worker&) { ++stopped; }
};

struct Brief {
  unsigned turns = 100;

  void start(Worker&) {}
  unsigned poll(Worker& worker) {
    if (--turns == 0) worker.request_stop();
    return 1;
  }
  void stop(Worker&) {}
};

struct Failing {
  bool fails;

  void start(Worker&) {}
  unsigned poll(Worker&) {
    if (fails) throw std::runtime_error("the tank is empty");
    return 0;
  }
  void stop(Worker&) {}
};

}  // namespace

TEST_SUITE("worker.runtime") {
  TEST_CASE("every lcore gets a worker with an app of its own, pinned there, and a row in the result") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    Runtime runtime(device, small_plan(2), small_runtime(locks));
    struct Placed : Brief {
      explicit Placed(std::function<void(Worker&)> look) : look_(std::move(look)) {}
      void start(Worker& worker) { look_(worker); }
      std::function<void(Worker&)> look_;
    };
    std::mutex mutex;
    std::set<unsigned> seen;
    bool in_place = true;
    const RunResult result = runtime.run([&](unsigned index) {
      return Placed([&, index](Worker& worker) {
        const std::lock_guard lock(mutex);
        seen.insert(worker.lcore());
        in_place = in_place && worker.index() == index &&
                   lcore::affinity() == lcore::CpuSet{worker.lcore()} &&
                   worker.lcore() == runtime.plan().lcores[index].cpu;
      });
    });
    CHECK(in_place);
    CHECK(seen.size() == runtime.plan().lcores.size());
    CHECK(result.cause == StopCause::workers_ended);
    REQUIRE(result.lcores.size() == runtime.plan().lcores.size());
    for (std::size_t i = 0; i < result.lcores.size(); ++i) {
      CHECK(result.lcores[i].report.lcore == runtime.plan().lcores[i].cpu);
      CHECK(result.lcores[i].report.counters.turns >= 100);
      CHECK_FALSE(result.lcores[i].notes.empty());
    }
    CHECK(has(to_text(result), "ns/WR"));
  }

  TEST_CASE("the calling thread gets its CPUs back") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    const lcore::CpuSet before = lcore::affinity();
    Runtime runtime(device, small_plan(1), small_runtime(locks));
    runtime.run([](unsigned) { return Brief(); });
    CHECK(lcore::affinity() == before);
  }

  TEST_CASE("request_stop ends all workers cleanly") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    std::atomic<unsigned> started{0};
    std::atomic<unsigned> stopped{0};
    Runtime runtime(device, small_plan(2), small_runtime(locks));
    std::thread stopper([&] {
      while (started < runtime.plan().lcores.size()) std::this_thread::yield();
      runtime.request_stop();
    });
    const RunResult result = runtime.run([&](unsigned) { return Counting{started, stopped}; });
    stopper.join();
    CHECK(result.cause == StopCause::requested);
    CHECK(stopped == runtime.plan().lcores.size());
  }

  TEST_CASE("a run ends when its time is up") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    std::atomic<unsigned> started{0};
    std::atomic<unsigned> stopped{0};
    RuntimeOptions options = small_runtime(locks);
    options.max_duration_ns = 30'000'000;
    Runtime runtime(device, small_plan(1), options);
    const RunResult result = runtime.run([&](unsigned) { return Counting{started, stopped}; });
    CHECK(result.cause == StopCause::duration);
    CHECK(stopped == started);
  }

  TEST_CASE("while workers run, ticks see their counters grow") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    std::atomic<unsigned> started{0};
    std::atomic<unsigned> stopped{0};
    RuntimeOptions options = small_runtime(locks);
    std::vector<std::uint64_t> turns;
    std::string prometheus;
    options.tick_ns = 20'000'000;
    options.on_tick = [&](const Runtime& runtime) {
      const auto reports = runtime.reports();
      if (reports.empty() || reports[0].counters.turns == 0) return;
      turns.push_back(reports[0].counters.turns);
      prometheus = pollen::probe::prometheus_text(reports);
      if (turns.size() == 3) const_cast<Runtime&>(runtime).request_stop();
    };
    Runtime runtime(device, small_plan(1), options);
    runtime.run([&](unsigned) { return Counting{started, stopped}; });
    REQUIRE(turns.size() >= 3);
    CHECK(turns[0] < turns[1]);
    CHECK(turns[1] < turns[2]);
    CHECK_FALSE(prometheus.empty());
    REQUIRE(runtime.reports().size() == 1);  // still there when all is over
    CHECK(runtime.reports()[0].counters.turns >= turns[2]);
  }

  TEST_CASE("an app that throws ends the run of all, with its words and its lcore") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    Runtime runtime(device, small_plan(2), small_runtime(locks));
    const auto last = static_cast<unsigned>(runtime.plan().lcores.size() - 1);
    const std::string error =
        error_of([&] { runtime.run([&](unsigned index) { return Failing{index == last}; }); });
    CHECK(error == "cannot run the app on lcore " + std::to_string(runtime.plan().lcores[last].cpu) +
                       ": the tank is empty");
  }

  TEST_CASE("an Error of an app keeps its sentence and gains the lcore") {
    struct Sentence : Brief {
      unsigned poll(Worker&) {
        throw pollen::Error(
            ENOENT, {.attempted = "read the file", .on = "a.bin", .why = "gone", .remedy = "Copy it"});
      }
    };
    TemporaryDirectory locks;
    pollen::fake::Device device;
    Runtime runtime(device, small_plan(1), small_runtime(locks));
    const std::string error = error_of([&] { runtime.run([](unsigned) { return Sentence(); }); });
    CHECK(error == "cannot read the file on a.bin, lcore " + std::to_string(runtime.plan().lcores[0].cpu) +
                       ": gone. Copy it");
  }

  TEST_CASE("a worker that can't be made ends the run, and the others with it") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    RuntimeOptions options = small_runtime(locks);
    options.worker.arena_bytes = std::size_t{1} << 50;
    Runtime runtime(device, small_plan(2), options);
    CHECK(has(error_of([&] { runtime.run([](unsigned) { return Brief(); }); }), "lcore "));
  }

  TEST_CASE("an lcore that is taken is refused, and no worker is started") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    std::atomic<unsigned> started{0};
    std::atomic<unsigned> stopped{0};
    Runtime runtime(device, small_plan(1), small_runtime(locks));
    const lcore::LcoreLock taken(runtime.plan().lcores[0].cpu, locks.path());
    CHECK(has(error_of([&] { runtime.run([&](unsigned) {
                               return Counting{started, stopped};
                             }); }),
              "lcore " + std::to_string(runtime.plan().lcores[0].cpu)));
    CHECK(started == 0);
  }

  TEST_CASE("with strict, advice about the lcores is an error") {
    TemporaryDirectory locks;
    pollen::fake::Device device;
    lcore::Plan plan = small_plan(1);
    plan.advice.push_back({lcore::Advice::Kind::cpu0, "lcore 0 is the kernel's favourite", "use another"});
    RuntimeOptions options = small_runtime(locks);
    options.strict = true;
    Runtime runtime(device, plan, options);
    CHECK(has(error_of([&] { runtime.run([](unsigned) { return Brief(); }); }), "the kernel's favourite"));
  }

  TEST_CASE(
      "memory that may not be pinned is refused before anything is started; the software NIC pins none") {
    TemporaryDirectory locks;
    lcore::Child child([&](const lcore::Child::Say& say) {
      const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
      if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 1;
      if (geteuid() == 0 && setuid(65534) != 0) return 2;  // root is not held to the limit
      RuntimeOptions options = small_runtime(locks);
      options.lock_lcores = false;
      pollen::fake::Device device;
      Runtime soft(device, small_plan(1), options);
      say(error_of([&] { soft.run([](unsigned) { return Brief(); }); }));
      device.device_info.driver = "verbs";
      Runtime pinning(device, small_plan(1), options);
      say(error_of([&] { pinning.run([](unsigned) { return Brief(); }); }));
      return 0;
    });
    CHECK(child.hear() == "no error");
    const auto error = child.hear();
    REQUIRE(error);
    CHECK(has(*error, "RLIMIT_MEMLOCK"));
    CHECK(has(*error, "1 worker on fake0"));
    CHECK(child.finish() == 0);
  }
}
