// Builds file trees that stand in for a machine: the CPUs by rule, the rest from tests/fixtures/lcore.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "pollen/lcore/cpu_set.hpp"
#include "pollen/lcore/host.hpp"

namespace pollen::lcore {

// Numbered as Linux does on x86: first one thread of every core, then the second threads.
struct MachineShape {
  unsigned sockets = 2;
  unsigned cores_per_socket = 64;
  unsigned threads_per_core = 2;
  CpuSet offline = {};

  unsigned cpus() const { return sockets * cores_per_socket * threads_per_core; }
};

// A directory of its own under the system's temporary one, removed with the object.
class TempDirectory {
 public:
  TempDirectory();
  ~TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class MachineTree {
 public:
  explicit MachineTree(const MachineShape& shape);

  // Adds the files of tests/fixtures/lcore/NAME: "== PATH" and the lines of that file.
  MachineTree& add_recorded(std::string_view name);
  MachineTree& add(std::string_view path, std::string_view text);
  MachineTree& set_affinity(const CpuSet& cpus);

  Host host() const { return Host(directory_.path()); }

 private:
  TempDirectory directory_;
};

}  // namespace pollen::lcore
