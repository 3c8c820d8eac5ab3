#include "pollen/lcore/machine.hpp"

#include "pollen/lcore/cgroup.hpp"

namespace pollen::lcore {

namespace {

void read_cpuset_ownership(Machine& machine) {
  const auto cgroup = find_cgroup(machine.host, "cpuset");
  if (!cgroup) return;
  const std::string& own = cgroup->levels.front().directory;
  if (cgroup->version == 2) {
    const std::string partition = machine.host.read(own + "/cpuset.cpus.partition").value_or("");
    if (partition == "isolated") machine.isolated = machine.isolated | machine.limits.allowed;
    if (partition == "isolated" || partition == "root") machine.exclusive = machine.limits.allowed;
    return;
  }
  // The root of a v1 hierarchy always says 1, and everything lives in it.
  const bool is_root = cgroup->levels.size() == 1 && cgroup->levels.front().name == "/";
  if (!is_root && machine.host.read_number(own + "/cpuset.cpu_exclusive") == 1) {
    machine.exclusive = machine.limits.allowed;
  }
}

}  // namespace

Machine Machine::read(const Host& host) {
  Machine out{.host = host,
              .limits = read_limits(host),
              .topology = Topology::load(host),
              .isolated = host.read_cpus("/sys/devices/system/cpu/isolated").value_or(CpuSet{}),
              .exclusive = {},
              .tickless = host.read_cpus("/sys/devices/system/cpu/nohz_full").value_or(CpuSet{})};
  read_cpuset_ownership(out);
  return out;
}

}  // namespace pollen::lcore
