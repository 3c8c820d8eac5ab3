#include "pollen/lcore/plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "expect.hpp"
#include "machine_tree.hpp"
#include "pollen/lcore/advice.hpp"

using namespace pollen::lcore;

namespace {

const Advice* find(const Plan& plan, Advice::Kind kind) {
  const auto found = std::ranges::find(plan.advice, kind, &Advice::kind);
  return found == plan.advice.end() ? nullptr : &*found;
}

std::string chosen(const Machine& machine, const PlanRequest& request) {
  return make_plan(machine, request).cpus().list();
}

Machine big_machine(std::string_view recorded) {
  MachineTree tree{MachineShape{}};
  tree.add_recorded(recorded);
  return Machine::read(tree.host());
}

}  // namespace

TEST_SUITE("lcore.plan") {
  TEST_CASE("by default each physical core of the device's node gets one worker") {
    const Machine machine = big_machine("bare.tree");
    CHECK(chosen(machine, {.node = 1}) == "64-127");
    CHECK(chosen(machine, {.node = 0}) == "0-63");
    CHECK(chosen(machine, {}) == "0-63");
    CHECK(chosen(machine, {.node = 1, .max_workers = 2}) == "64-65");
    CHECK(make_plan(machine, {.node = 1}).lcores.front().node == 1);
  }

  TEST_CASE("the default keeps to the cpuset and to what the quota covers") {
    const Machine machine = big_machine("v2_holes_quota.tree");  // CPUs 2-3,8,17-20,130; 2.5 CPUs
    const Plan plan = make_plan(machine, {.node = 0});
    CHECK(plan.cpus().list() == "2-3");
    CHECK(!plan.exceeds_quota);
    CHECK(find(plan, Advice::Kind::quota) == nullptr);
  }

  TEST_CASE("a node without allowed CPUs gives way to the CPUs that are allowed, and it is said") {
    const Machine machine = big_machine("v2_holes_quota.tree");
    const Plan plan = make_plan(machine, {.node = 1});
    CHECK(plan.cpus().list() == "2-3");
    const Advice* far = find(plan, Advice::Kind::far_node);
    REQUIRE(far != nullptr);
    CHECK(far->text == "lcores 2-3 are away from NUMA node 1, where the device is");
    CHECK(far->fix == "allow this process CPUs of node 1: 64-127,192-255");
  }

  TEST_CASE("the default avoids cores of which another process holds a thread") {
    const Machine machine = big_machine("v1_container.tree");  // CPUs 4-7
    CHECK(chosen(machine, {.taken = {4, 133}}) == "6-7");
    const std::string error = error_of([&] { make_plan(machine, {.taken = {4, 5, 6, 7}}); });
    CHECK(has(error, "cannot choose lcores: other Pollen processes hold lcores 4-7"));
    CHECK(has(error, "--lcores"));
  }

  TEST_CASE("where not all can be had, cores set aside come first and CPU 0 last") {
    MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 8}};
    tree.add_recorded("bare.tree").add("/sys/devices/system/cpu/isolated", "6");
    const Machine machine = Machine::read(tree.host());
    CHECK(chosen(machine, {.max_workers = 1}) == "6");
    CHECK(chosen(machine, {.max_workers = 7}) == "1-7");
  }

  TEST_CASE("cores asked for are taken as they are") {
    const Machine machine = big_machine("bare.tree");
    const Plan plan =
        make_plan(machine, {.lcores = CpuSet{3, 131, 200}, .node = 1, .max_workers = 1, .taken = {3}});
    CHECK(plan.cpus() == CpuSet{3, 131, 200});
    CHECK(plan.lcores[2].node == 1);
    CHECK(plan.lcores[0].core == plan.lcores[1].core);
  }

  TEST_CASE("a core asked for and not allowed is refused by name, with where the limit comes from") {
    const Machine machine = big_machine("v2_holes_quota.tree");
    CHECK(
        error_of([&] {
          make_plan(machine, {.lcores = CpuSet{2, 9}});
        }) ==
        "cannot use lcore 9: not in cpuset.cpus.effective of cgroup /tenant.slice/app.service (v2), which is "
        "2-3,8,17-20,130. Choose among 2-3,8,17-20,130, or widen "
        "/sys/fs/cgroup/tenant.slice/app.service/cpuset.cpus");
    const std::string several = error_of([&] { make_plan(machine, {.lcores = CpuSet{9, 2000}}); });
    CHECK(has(several, "cannot use lcores 9,2000: 2000: there is no such CPU"));
    CHECK(has(several, "; 9: not in cpuset.cpus.effective"));
  }

  TEST_CASE("a mask with bit 2000 is refused for what the machine has") {
    const Machine machine = big_machine("bare.tree");
    const CpuSet mask = CpuSet::parse_mask("1" + std::string(500, '0'));
    CHECK(has(error_of([&] { make_plan(machine, {.lcores = mask}); }),
              "cannot use lcore 2000: there is no such CPU, /sys/devices/system/cpu/present says 0-255"));
  }
}

TEST_SUITE("lcore.advice") {
  TEST_CASE("more workers than the quota covers are warned of, and sleep by default") {
    const Machine machine = big_machine("v2_holes_quota.tree");
    const Plan plan = make_plan(machine, {.lcores = CpuSet{2, 3, 8}});
    const Advice* quota = find(plan, Advice::Kind::quota);
    REQUIRE(quota != nullptr);
    CHECK(has(quota->text,
              "3 busy-polling workers share a CPU quota of 2.5 (cpu.max of cgroup /tenant.slice (v2) is"));
    CHECK(has(quota->fix, "at most 2 lcores"));
    CHECK(default_idle(plan) == Idle::sleep);
  }

  TEST_CASE("a quota below one CPU leaves one worker, with a warning") {
    MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 4}};
    tree.add_recorded("v2_namespace.tree").add("/run/my groups/cpu.max", "50000 100000");
    const Plan plan = make_plan(Machine::read(tree.host()), {});
    CHECK(plan.lcores.size() == 1);
    REQUIRE(find(plan, Advice::Kind::quota) != nullptr);
    CHECK(has(find(plan, Advice::Kind::quota)->text, "1 busy-polling worker shares a CPU quota of 0.5"));
  }

  TEST_CASE("threads of one physical core are named, with the list that avoids them") {
    const Machine machine = big_machine("bare.tree");
    const Advice* pair = nullptr;
    const Plan plan = make_plan(machine, {.lcores = CpuSet{3, 4, 131}});
    pair = find(plan, Advice::Kind::smt_siblings);
    REQUIRE(pair != nullptr);
    CHECK(has(pair->text, "lcores 3,131 are threads of one physical core"));
    CHECK(pair->fix == "use --lcores 3-4");
    const Plan all = make_plan(machine, {.lcores = CpuSet::parse_list("0-255")});
    CHECK(has(find(all, Advice::Kind::smt_siblings)->text, "and 124 more sets"));
    const Plan apart = make_plan(machine, {.lcores = CpuSet{3, 4}});
    CHECK(find(apart, Advice::Kind::smt_siblings) == nullptr);
  }

  TEST_CASE("CPU 0 is advised against only where there is another") {
    const Machine machine = big_machine("bare.tree");
    const Plan plan = make_plan(machine, {.lcores = CpuSet{0, 7}});
    REQUIRE(find(plan, Advice::Kind::cpu0) != nullptr);
    CHECK(find(plan, Advice::Kind::cpu0)->fix == "leave CPU 0 out: --lcores 7");
    MachineTree single{MachineShape{.sockets = 1, .cores_per_socket = 1, .threads_per_core = 1}};
    single.add_recorded("bare.tree");
    CHECK(find(make_plan(Machine::read(single.host()), {}), Advice::Kind::cpu0) == nullptr);
  }

  TEST_CASE("a core away from the device's node is named, with the cores that are near") {
    const Machine machine = big_machine("v1_container.tree");
    const Plan plan = make_plan(big_machine("bare.tree"), {.lcores = CpuSet{63, 64}, .node = 1});
    REQUIRE(find(plan, Advice::Kind::far_node) != nullptr);
    CHECK(find(plan, Advice::Kind::far_node)->text ==
          "lcore 63 is away from NUMA node 1, where the device is");
    CHECK(has(find(plan, Advice::Kind::far_node)->fix, "64-127,192-255"));
    CHECK(find(make_plan(machine, {.node = 0}), Advice::Kind::far_node) == nullptr);
    CHECK(find(make_plan(machine, {}), Advice::Kind::far_node) == nullptr);
  }

  TEST_CASE("isolation, timer tick and governor are told apart, each with its fix") {
    MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 8}};
    tree.add_recorded("bare.tree")
        .add("/sys/devices/system/cpu/isolated", "3-4")
        .add("/sys/devices/system/cpu/nohz_full", "4")
        .add("/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave")
        .add("/sys/devices/system/cpu/cpu4/cpufreq/scaling_governor", "performance");
    const Machine machine = Machine::read(tree.host());
    const Plan plan = make_plan(machine, {.lcores = CpuSet{2, 3, 4}});
    REQUIRE(plan.advice.size() == 3);
    CHECK(find(plan, Advice::Kind::not_isolated)->text ==
          "lcore 2 is not isolated: the scheduler may run other work there");
    CHECK(find(plan, Advice::Kind::not_isolated)->fix == "boot with isolcpus=2");
    CHECK(find(plan, Advice::Kind::timer_tick)->fix == "boot with nohz_full=2-3");
    CHECK(find(plan, Advice::Kind::governor)->text == "lcore 2 is under the frequency governor powersave");
    CHECK(find(plan, Advice::Kind::governor)->fix == "cpupower -c 2 frequency-set -g performance");
    CHECK(make_plan(machine, {.lcores = CpuSet{4}}).advice.empty());
  }

  TEST_CASE("workers spin by default only where every core was set aside for them") {
    MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 8}};
    tree.add_recorded("bare.tree").add("/sys/devices/system/cpu/isolated", "3-4");
    const Machine machine = Machine::read(tree.host());
    CHECK(default_idle(make_plan(machine, {.lcores = CpuSet{3, 4}})) == Idle::spin);
    CHECK(default_idle(make_plan(machine, {.lcores = CpuSet{2, 3}})) == Idle::pause);
    MachineTree exclusive{MachineShape{.sockets = 1, .cores_per_socket = 8}};
    exclusive.add_recorded("v1_container.tree");
    CHECK(default_idle(make_plan(Machine::read(exclusive.host()), {.lcores = CpuSet{4, 5}})) == Idle::spin);
  }

  TEST_CASE("--strict turns findings into an error that lists each with its fix") {
    const Plan plan = make_plan(big_machine("bare.tree"), {.lcores = CpuSet{0, 128}});
    REQUIRE(plan.advice.size() == 4);
    CHECK_NOTHROW(enforce(plan.advice, false));
    CHECK_NOTHROW(enforce({}, true));
    const std::string error = error_of([&] { enforce(plan.advice, true); });
    CHECK(has(error, "--strict"));
    for (const Advice& each : plan.advice) {
      CHECK(has(error, each.text));
      CHECK(has(error, each.fix));
    }
  }
}
