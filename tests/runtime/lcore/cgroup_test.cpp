// Against cgroups of the machine that runs the tests, where it lets one be made.
#include "pollen/lcore/cgroup.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>

#include "child.hpp"
#include "expect.hpp"
#include "pollen/lcore/machine.hpp"
#include "pollen/lcore/plan.hpp"

using namespace pollen::lcore;

namespace {

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  return file && file << text << std::flush;
}

// A cgroup beneath the one that the tests run in; removed with the object.
class ScratchCgroup {
 public:
  explicit ScratchCgroup(std::string_view controller) {
    const auto own = find_cgroup(Host(), controller);
    if (!own) {
      why_not_ = fmt::format("no {} controller is mounted", controller);
      return;
    }
    version_ = own->version;
    const std::string& parent = own->levels.front().directory;
    if (version_ == 2) write_file(parent + "/cgroup.subtree_control", fmt::format("+{}", controller));
    const std::string path = fmt::format("{}/pollen-test-{}-{}", parent, controller, getpid());
    if (mkdir(path.c_str(), 0755) != 0) {
      why_not_ = fmt::format("cannot make {}: {}", path, std::strerror(errno));
      return;
    }
    path_ = path;
  }

  ~ScratchCgroup() {
    for (int tries = 0; !path_.empty() && rmdir(path_.c_str()) != 0 && errno == EBUSY && tries < 1000;
         ++tries) {
      const timespec ms{.tv_sec = 0, .tv_nsec = 1'000'000};
      nanosleep(&ms, nullptr);
    }
  }
  ScratchCgroup(const ScratchCgroup&) = delete;
  ScratchCgroup& operator=(const ScratchCgroup&) = delete;

  // All that a test needs of it, or the reason to skip.
  bool set(const std::string& file, const std::string& text) {
    if (!why_not_.empty()) return false;
    if (!write_file(path_ + "/" + file, text)) why_not_ = fmt::format("cannot write to {}/{}", path_, file);
    return why_not_.empty();
  }
  bool enter() const { return write_file(path_ + "/cgroup.procs", fmt::to_string(getpid())); }
  const std::string& why_not() const { return why_not_; }
  unsigned version() const { return version_; }
  std::string name() const { return path_.substr(path_.rfind('/')); }

 private:
  std::string path_;
  std::string why_not_;
  unsigned version_ = 0;
};

}  // namespace

TEST_SUITE("lcore.cgroup") {
  TEST_CASE("a CPU outside of a real cpuset is refused by the name of that cgroup") {
    const Limits outside = read_limits(Host());
    if (outside.allowed.size() < 2) {
      MESSAGE("skipped: a narrower cpuset takes two allowed CPUs");
      return;
    }
    const unsigned first = *outside.allowed.begin();
    const unsigned last = *std::prev(outside.allowed.end());
    ScratchCgroup cgroup("cpuset");
    if (cgroup.version() == 1) {
      const auto own = find_cgroup(Host(), "cpuset");
      cgroup.set("cpuset.mems", Host().read(own->levels.front().directory + "/cpuset.mems").value_or("0"));
    }
    if (!cgroup.set("cpuset.cpus", fmt::to_string(last))) {
      MESSAGE("skipped: " << cgroup.why_not());
      return;
    }
    Child child([&](const Child::Say& say) {
      if (!cgroup.enter()) return 1;
      const Machine machine = Machine::read();
      say(machine.limits.allowed.list());
      say(error_of([&] { make_plan(machine, {.lcores = CpuSet{first}}); }));
      return make_plan(machine, {}).cpus() == CpuSet{last} ? 0 : 2;
    });
    CHECK(child.hear() == fmt::to_string(last));
    const std::string error = child.hear().value_or("");
    CAPTURE(error);
    CHECK(has(error, fmt::format("cannot use lcore {}: not in cpuset.", first)));
    CHECK(has(error, cgroup.name()));
    CHECK(has(error, fmt::format("(v{}), which is {}", cgroup.version(), last)));
    CHECK(child.finish() == 0);
  }

  TEST_CASE("a real quota is seen, and one worker is planned where it covers one and a half") {
    ScratchCgroup cgroup("cpu");
    const bool ready = cgroup.version() == 2 ? cgroup.set("cpu.max", "150000 100000")
                                             : cgroup.set("cpu.cfs_period_us", "100000") &&
                                                   cgroup.set("cpu.cfs_quota_us", "150000");
    if (!ready) {
      MESSAGE("skipped: " << cgroup.why_not());
      return;
    }
    Child child([&](const Child::Say& say) {
      if (!cgroup.enter()) return 1;
      const Machine machine = Machine::read();
      if (!machine.limits.quota) return 2;
      say(fmt::format("{}", machine.limits.quota->cpus));
      say(machine.limits.quota->where);
      return make_plan(machine, {}).lcores.size() == 1 ? 0 : 3;
    });
    CHECK(child.hear() == "1.5");
    const std::string where = child.hear().value_or("");
    CHECK(has(where, cgroup.name()));
    CHECK(has(where, "150000 100000"));
    CHECK(child.finish() == 0);
  }

  TEST_CASE("this process's own cgroup is found where it is listed as a member") {
    const auto cgroup = find_cgroup(Host(), "cpuset");
    if (!cgroup) {
      MESSAGE("skipped: no cpuset controller is mounted");
      return;
    }
    const auto members = Host().read(cgroup->levels.front().directory + "/cgroup.procs");
    REQUIRE(members);
    CHECK(has("\n" + *members + "\n", fmt::format("\n{}\n", getpid())));
  }
}
