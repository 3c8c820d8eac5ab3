#include "pollen/lcore/topology.hpp"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>

#include "pollen/base/error.hpp"

namespace pollen::lcore {

namespace {

// hwloc takes a file tree that stands in for the machine only from the environment.
class FsRoot {
 public:
  explicit FsRoot(const Host& host) : set_(!host.live()) {
    if (set_) setenv(name, host.root().c_str(), 1);
  }
  ~FsRoot() {
    if (set_) unsetenv(name);
  }
  FsRoot(const FsRoot&) = delete;
  FsRoot& operator=(const FsRoot&) = delete;

 private:
  static constexpr const char* name = "HWLOC_FSROOT";
  bool set_;
};

using HwlocTopology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

HwlocTopology load_hwloc(const Host& host) {
  auto check = [&host](int result, const char* attempted) {
    if (result != 0) throw Error(errno, {.attempted = attempted, .on = host.root().string()});
  };
  const FsRoot fs_root(host);
  hwloc_topology_t raw = nullptr;
  check(hwloc_topology_init(&raw), "start hwloc");
  HwlocTopology topology(raw, &hwloc_topology_destroy);
  // CPUs outside of our cgroup matter too: they may be siblings of ours.
  check(hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED), "set hwloc's flags");
  if (!host.live()) {
    // This one would ask the CPU that runs here instead of the tree.
    check(hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86"),
          "restrict hwloc to the file tree");
  }
  check(hwloc_topology_load(raw), "read the topology");
  return topology;
}

unsigned logical_index(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t below,
                       unsigned otherwise) {
  const hwloc_obj* found = hwloc_get_ancestor_obj_by_type(topology, type, below);
  return found != nullptr ? found->logical_index : otherwise;
}

std::optional<unsigned> device_node(const Host& host, std::string_view bus, std::string_view device,
                                    std::string_view file) {
  // The name becomes part of a path.
  if (device.empty() || device.front() == '.' || device.find('/') != std::string_view::npos)
    return std::nullopt;
  const auto node = host.read_number(fmt::format("{}/{}/{}", bus, device, file));
  if (!node || *node < 0 || *node > CpuSet::limit) return std::nullopt;  // -1: the firmware does not say
  return static_cast<unsigned>(*node);
}

}  // namespace

Topology Topology::load(const Host& host) {
  const HwlocTopology hwloc = load_hwloc(host);
  Topology out;
  hwloc_obj_t pu = nullptr;
  while ((pu = hwloc_get_next_obj_by_type(hwloc.get(), HWLOC_OBJ_PU, pu)) != nullptr) {
    if (pu->os_index >= CpuSet::limit) continue;
    const int node = pu->nodeset != nullptr ? hwloc_bitmap_first(pu->nodeset) : 0;
    out.places_[pu->os_index] = {
        .core = logical_index(hwloc.get(), HWLOC_OBJ_CORE, pu, pu->logical_index),
        .package = logical_index(hwloc.get(), HWLOC_OBJ_PACKAGE, pu, 0),
        .node = node >= 0 ? static_cast<unsigned>(node) : 0,
    };
  }
  for (const auto& [cpu, place] : out.places_) out.core_count_ = std::max(out.core_count_, place.core + 1);
  out.node_count_ =
      static_cast<unsigned>(std::max(1, hwloc_get_nbobjs_by_type(hwloc.get(), HWLOC_OBJ_NUMANODE)));
  return out;
}

CpuPlace Topology::place(unsigned cpu) const {
  const auto found = places_.find(cpu);
  if (found != places_.end()) return found->second;
  return {.core = core_count_ + cpu};
}

CpuSet Topology::cpus() const {
  CpuSet out;
  for (const auto& [cpu, place] : places_) out.add(cpu);
  return out;
}

CpuSet Topology::siblings(unsigned cpu) const {
  CpuSet out{cpu};
  const unsigned core = place(cpu).core;
  for (const auto& [other, place] : places_) {
    if (place.core == core) out.add(other);
  }
  return out;
}

CpuSet Topology::node_cpus(unsigned node) const {
  CpuSet out;
  for (const auto& [cpu, place] : places_) {
    if (place.node == node) out.add(cpu);
  }
  return out;
}

std::optional<unsigned> rdma_device_node(const Host& host, std::string_view device) {
  return device_node(host, "/sys/class/infiniband", device, "device/numa_node");
}

std::optional<unsigned> pci_device_node(const Host& host, std::string_view address) {
  return device_node(host, "/sys/bus/pci/devices", address, "numa_node");
}

}  // namespace pollen::lcore
