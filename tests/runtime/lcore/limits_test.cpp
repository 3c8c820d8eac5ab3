#include "pollen/lcore/limits.hpp"

#include <doctest/doctest.h>

#include "expect.hpp"
#include "machine_tree.hpp"
#include "pollen/lcore/cgroup.hpp"
#include "pollen/lcore/machine.hpp"

using namespace pollen::lcore;

TEST_SUITE("lcore.limits") {
  TEST_CASE("a big machine without limits allows all of its CPUs") {
    MachineTree tree{MachineShape{}};
    tree.add_recorded("bare.tree");
    const Limits limits = read_limits(tree.host());
    CHECK(limits.allowed.list() == "0-255");
    CHECK(!limits.quota);
    CHECK(limits.refusals(CpuSet{0, 255}).empty());
  }

  TEST_CASE(
      "a v2 cpuset with holes is that of the nearest cgroup that has one, the quota the tightest above") {
    MachineTree tree{MachineShape{}};
    tree.add_recorded("v2_holes_quota.tree");
    const Limits limits = read_limits(tree.host());
    CHECK(limits.allowed.list() == "2-3,8,17-20,130");
    REQUIRE(limits.quota);
    CHECK(limits.quota->cpus == doctest::Approx(2.5));
    CHECK(limits.quota->where == "cpu.max of cgroup /tenant.slice (v2) is 250000 100000");

    const auto refusals = limits.refusals(CpuSet{3, 4, 9});
    REQUIRE(refusals.size() == 1);
    CHECK(refusals[0].cpus == CpuSet{4, 9});
    CHECK(refusals[0].why ==
          "not in cpuset.cpus.effective of cgroup /tenant.slice/app.service (v2), which is 2-3,8,17-20,130");
    CHECK(refusals[0].remedy == "widen /sys/fs/cgroup/tenant.slice/app.service/cpuset.cpus");
  }

  TEST_CASE("in a v1 container the mount shows the container's own cgroup") {
    MachineTree tree{MachineShape{}};
    tree.add_recorded("v1_container.tree");
    const Limits limits = read_limits(tree.host());
    CHECK(limits.allowed.list() == "4-7");
    REQUIRE(limits.quota);
    CHECK(limits.quota->cpus == doctest::Approx(2.5));
    CHECK(limits.quota->where ==
          "cpu.cfs_quota_us/cfs_period_us of cgroup /docker/4f2a (v1) is 250000 100000");
    CHECK(limits.refusals(CpuSet{0})[0].why ==
          "not in cpuset.effective_cpus of cgroup /docker/4f2a (v1), which is 4-7");
  }

  TEST_CASE("in a cgroup namespace the own cgroup is the root, wherever it is mounted") {
    MachineTree tree{MachineShape{}};
    tree.add_recorded("v2_namespace.tree");
    const Limits limits = read_limits(tree.host());
    CHECK(limits.allowed.list() == "0-3");
    REQUIRE(limits.quota);
    CHECK(limits.quota->cpus == doctest::Approx(3.0));
    CHECK(find_cgroup(tree.host(), "cpuset")->levels.front().directory == "/run/my groups");
  }

  TEST_CASE("a mount that shows an unnamed ancestor gives that ancestor's limits") {
    MachineTree tree{MachineShape{}};
    tree.add_recorded("v2_moved.tree");
    const Limits limits = read_limits(tree.host());
    CHECK(limits.allowed.list() == "0-15");
    REQUIRE(limits.quota);
    CHECK(limits.quota->cpus == doctest::Approx(4.0));
  }

  TEST_CASE("a cgroup tree that does not contain this process sets it no limit") {
    MachineTree tree{MachineShape{}};
    tree.add_recorded("outside.tree");
    const Limits limits = read_limits(tree.host());
    CHECK(limits.allowed.list() == "0-255");
    CHECK(!limits.quota);
  }

  TEST_CASE("of a hybrid mount the v1 hierarchy counts, whose controllers these are") {
    MachineTree tree{MachineShape{}};
    tree.add_recorded("hybrid.tree");
    const Limits limits = read_limits(tree.host());
    CHECK(limits.allowed.list() == "128-191");
    CHECK(!limits.quota);
    CHECK(find_cgroup(tree.host(), "cpuset")->version == 1);
    CHECK(find_cgroup(tree.host(), "memory")->version == 2);
  }

  TEST_CASE("every refused CPU is attributed to the limit that comes first") {
    MachineTree tree{MachineShape{.offline = {9, 130}}};
    tree.add_recorded("v2_holes_quota.tree").set_affinity(CpuSet::parse_list("2-3,17-20"));
    const Limits limits = read_limits(tree.host());
    CHECK(limits.allowed.list() == "2-3,17-20");

    const auto refusals = limits.refusals(CpuSet{3, 5, 8, 9, 130, 2000});
    REQUIRE(refusals.size() == 4);
    CHECK(refusals[0].cpus == CpuSet{2000});
    CHECK(refusals[0].why == "there is no such CPU, /sys/devices/system/cpu/present says 0-255");
    CHECK(refusals[1].cpus == CpuSet{9, 130});
    CHECK(refusals[1].why == "offline, /sys/devices/system/cpu/online says 0-8,10-129,131-255");
    CHECK(refusals[2].cpus == CpuSet{5});
    CHECK(has(refusals[2].why, "cpuset.cpus.effective"));
    CHECK(refusals[3].cpus == CpuSet{8});
    CHECK(has(refusals[3].why,
              "not in the affinity mask that this process was started with, which is 2-3,17-20"));
  }

  TEST_CASE("a CPU list that is none is an error that names the file") {
    MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 2}};
    tree.add_recorded("bare.tree").add("/sys/devices/system/cpu/online", "zero");
    const std::string error = error_of([&] { read_limits(tree.host()); });
    CHECK(has(error, "/sys/devices/system/cpu/online"));
    CHECK(has(error, "'z' at position 1"));
  }

  TEST_CASE("a quota that makes no sense is no quota") {
    for (const char* text :
         {"", "max", "250000", "0 100000", "250000 0", "many 100000", "1 2 3", "-5 100000"}) {
      CAPTURE(text);
      MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 2}};
      tree.add_recorded("v2_namespace.tree").add("/run/my groups/cpu.max", text);
      CHECK(!read_limits(tree.host()).quota);
    }
  }

  TEST_CASE("isolated CPUs are those of isolcpus and of an isolated cpuset partition") {
    MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 8}};
    tree.add_recorded("v2_namespace.tree");
    tree.add("/sys/devices/system/cpu/isolated", "6-7").add("/sys/devices/system/cpu/nohz_full", "5-7");
    const Machine machine = Machine::read(tree.host());
    CHECK(machine.isolated.list() == "0-3,6-7");
    CHECK(machine.exclusive.list() == "0-3");
    CHECK(machine.tickless.list() == "5-7");
  }

  TEST_CASE("an exclusive v1 cpuset is known as such, and a list that was never given as empty") {
    MachineTree exclusive{MachineShape{}};
    exclusive.add_recorded("v1_container.tree");
    CHECK(Machine::read(exclusive.host()).exclusive.list() == "4-7");
    MachineTree bare{MachineShape{.sockets = 1, .cores_per_socket = 2}};
    bare.add_recorded("bare.tree");
    CHECK(Machine::read(bare.host()).tickless.empty());
  }

  TEST_CASE("this process may use at least one CPU of this machine, and each one allowed exists") {
    const Limits limits = read_limits(Host());
    CHECK(!limits.allowed.empty());
    CHECK(limits.refusals(limits.allowed).empty());
    CHECK(limits.refusals(CpuSet{8191}).size() == 1);
  }
}
