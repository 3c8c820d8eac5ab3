#include "pollen/lcore/topology.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "machine_tree.hpp"
#include "pollen/lcore/affinity.hpp"

using namespace pollen::lcore;

TEST_SUITE("lcore.topology") {
  TEST_CASE("two sockets of 64 cores with two threads each are read as such") {
    const MachineTree tree{MachineShape{}};
    const Topology topology = Topology::load(tree.host());
    CHECK(topology.cpus().list() == "0-255");
    CHECK(topology.core_count() == 128);
    CHECK(topology.node_count() == 2);
    CHECK(topology.siblings(3) == CpuSet{3, 131});
    CHECK(topology.siblings(200) == CpuSet{72, 200});
    CHECK(topology.node_cpus(0).list() == "0-63,128-191");
    CHECK(topology.node_cpus(1).list() == "64-127,192-255");
    CHECK(topology.node_cpus(2).empty());
    CHECK(topology.place(255).package == 1);
    CHECK(topology.place(255).node == 1);
    CHECK(topology.place(127).core == topology.place(255).core);
    CHECK(topology.place(0).core != topology.place(64).core);
  }

  TEST_CASE("offline CPUs are no one's siblings") {
    const MachineTree tree{MachineShape{.offline = {5, 130}}};
    const Topology topology = Topology::load(tree.host());
    CHECK(topology.cpus().list() == "0-4,6-129,131-255");
    CHECK(topology.siblings(133) == CpuSet{133});
    CHECK(topology.siblings(2) == CpuSet{2});
  }

  TEST_CASE("CPUs above 1024 have their place") {
    const MachineTree tree{MachineShape{.sockets = 4, .cores_per_socket = 160, .threads_per_core = 2}};
    const Topology topology = Topology::load(tree.host());
    CHECK(topology.cpus().list() == "0-1279");
    CHECK(topology.siblings(1279) == CpuSet{639, 1279});
    CHECK(topology.place(1279).node == 3);
  }

  TEST_CASE("a CPU that is not known counts as a core of its own") {
    const MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 4}};
    const Topology topology = Topology::load(tree.host());
    CHECK(topology.place(100).core != topology.place(101).core);
    CHECK(topology.place(100).core >= topology.core_count());
    CHECK(topology.siblings(100) == CpuSet{100});
  }

  TEST_CASE("a device is on the node that sysfs says, or on an unknown one") {
    MachineTree tree{MachineShape{.sockets = 1, .cores_per_socket = 2}};
    tree.add("/sys/class/infiniband/mlx5_0/device/numa_node", "1")
        .add("/sys/class/infiniband/rxe0/device/numa_node", "-1")
        .add("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "0")
        .add("/sys/class/numa_node", "7");
    CHECK(rdma_device_node(tree.host(), "mlx5_0") == 1U);
    CHECK(!rdma_device_node(tree.host(), "rxe0"));
    CHECK(!rdma_device_node(tree.host(), "mlx5_9"));
    CHECK(!rdma_device_node(tree.host(), ""));
    CHECK(!rdma_device_node(tree.host(), "../infiniband/mlx5_0"));
    CHECK(pci_device_node(tree.host(), "0000:3b:00.0") == 0U);
    CHECK(!pci_device_node(tree.host(), "0000:3b:00.1"));
  }

  TEST_CASE("this machine has a place for each CPU that we may use, and its environment is left alone") {
    const Topology topology = Topology::load(Host());
    CHECK((affinity() - topology.cpus()).empty());
    CHECK(std::getenv("HWLOC_FSROOT") == nullptr);
  }
}
