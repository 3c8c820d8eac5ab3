#include "machine_tree.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <fstream>
#include <stdexcept>
#include <vector>

namespace pollen::lcore {

namespace {

// The bitmap format of /sys: 32-bit words with commas between them, CPU 0 last.
std::string bitmap(const CpuSet& set, unsigned cpus) {
  std::string out;
  for (unsigned word = (cpus + 31) / 32; word-- > 0;) {
    unsigned bits = 0;
    for (unsigned bit = 0; bit < 32; ++bit) {
      if (set.contains(word * 32 + bit)) bits |= 1U << bit;
    }
    out += fmt::format("{}{:08x}", out.empty() ? "" : ",", bits);
  }
  return out;
}

}  // namespace

TempDirectory::TempDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "pollen-lcore-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

MachineTree::MachineTree(const MachineShape& shape) {
  const unsigned cores = shape.sockets * shape.cores_per_socket;
  CpuSet present;
  for (unsigned cpu = 0; cpu < shape.cpus(); ++cpu) present.add(cpu);
  const CpuSet online = present - shape.offline;
  std::vector<CpuSet> core_cpus(cores);
  std::vector<CpuSet> socket_cpus(shape.sockets);
  for (const unsigned cpu : online) {
    core_cpus[cpu % cores].add(cpu);
    socket_cpus[cpu % cores / shape.cores_per_socket].add(cpu);
  }

  const std::string cpu_root = "/sys/devices/system/cpu";
  add(cpu_root + "/present", present.list());
  add(cpu_root + "/possible", present.list());
  add(cpu_root + "/online", online.list());
  add(cpu_root + "/isolated", "");
  for (const unsigned cpu : online) {
    const unsigned core = cpu % cores;
    const unsigned socket = core / shape.cores_per_socket;
    const std::string topology = fmt::format("{}/cpu{}/topology", cpu_root, cpu);
    add(topology + "/core_id", fmt::to_string(core % shape.cores_per_socket));
    add(topology + "/physical_package_id", fmt::to_string(socket));
    for (const char* name : {"/core_cpus", "/thread_siblings"}) {
      add(topology + name, bitmap(core_cpus[core], shape.cpus()));
    }
    for (const char* name : {"/package_cpus", "/core_siblings"}) {
      add(topology + name, bitmap(socket_cpus[socket], shape.cpus()));
    }
  }
  for (const unsigned cpu : shape.offline) add(fmt::format("{}/cpu{}/online", cpu_root, cpu), "0");
  for (unsigned socket = 0; socket < shape.sockets; ++socket) {
    const std::string node = fmt::format("/sys/devices/system/node/node{}", socket);
    add(node + "/cpumap", bitmap(socket_cpus[socket], shape.cpus()));
    add(node + "/meminfo", fmt::format("Node {} MemTotal: 131072000 kB", socket));
  }
  add("/sys/devices/system/node/online", fmt::format("0-{}", shape.sockets - 1));
  add("/proc/meminfo", "MemTotal: 262144000 kB");
  set_affinity(online);
}

MachineTree& MachineTree::add_recorded(std::string_view name) {
  const char* fixtures = std::getenv("POLLEN_FIXTURES");
  if (fixtures == nullptr)
    throw std::runtime_error("POLLEN_FIXTURES is not set: run the tests through meson");
  std::ifstream file(std::filesystem::path(fixtures) / "lcore" / name);
  if (!file) throw std::runtime_error(fmt::format("no fixture {}", name));
  std::string path;
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("== ")) {
      if (!path.empty()) add(path, text);
      path = line.substr(3);
      text.clear();
    } else if (!path.empty()) {
      text += line + '\n';
    }
  }
  if (!path.empty()) add(path, text);
  return *this;
}

MachineTree& MachineTree::add(std::string_view path, std::string_view text) {
  const auto target = directory_.path() / std::filesystem::path(path).relative_path();
  std::filesystem::create_directories(target.parent_path());
  std::ofstream file(target);
  file << text;
  if (!text.ends_with('\n')) file << '\n';
  if (!file.flush()) throw std::runtime_error(fmt::format("cannot write {}", target.string()));
  return *this;
}

MachineTree& MachineTree::set_affinity(const CpuSet& cpus) {
  return add("/proc/self/status",
             fmt::format("Name:\tapp\nCpus_allowed_list:\t{}\nMems_allowed_list:\t0\n", cpus.list()));
}

}  // namespace pollen::lcore
