// How the machine is built: which CPUs are threads of one physical core, and which package and NUMA
// node they and the devices belong to. Read by hwloc, from the running machine or a recorded tree.
//
// Node numbers are the kernel's; core and package numbers count from 0 over the whole machine.
// Thread rules: load() before other threads start (for a recorded tree it sets an environment
// variable while hwloc reads); immutable afterwards. Errors: pollen::Error.
#pragma once

#include <map>
#include <optional>
#include <string_view>

#include "pollen/lcore/cpu_set.hpp"
#include "pollen/lcore/host.hpp"

namespace pollen::lcore {

struct CpuPlace {
  unsigned core = 0;  // physical core, unique in the machine
  unsigned package = 0;
  unsigned node = 0;
};

class Topology {
 public:
  static Topology load(const Host& host);

  // A CPU that hwloc knows nothing of counts as a core of its own on node 0.
  CpuPlace place(unsigned cpu) const;

  CpuSet cpus() const;                    // all online CPUs
  CpuSet siblings(unsigned cpu) const;    // threads of cpu's physical core, itself included
  CpuSet node_cpus(unsigned node) const;  // empty for a node without CPUs
  unsigned core_count() const { return core_count_; }
  unsigned node_count() const { return node_count_; }  // nodes without CPUs (CXL, HBM) included

 private:
  std::map<unsigned, CpuPlace> places_;
  unsigned core_count_ = 0;
  unsigned node_count_ = 1;
};

// The NUMA node of an RDMA device ("mlx5_0") or a PCI address ("0000:3b:00.0"); nothing if there is
// no such device or the platform does not say.
std::optional<unsigned> rdma_device_node(const Host& host, std::string_view device);
std::optional<unsigned> pci_device_node(const Host& host, std::string_view address);

}  // namespace pollen::lcore
