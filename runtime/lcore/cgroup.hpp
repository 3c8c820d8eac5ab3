// Where in the file system the cgroup of this process lies, for v1, v2 and hybrid mounts, inside
// and outside of containers.
//
// Thread rules: values. Errors: none; what cannot be seen from here is simply not found.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pollen/lcore/host.hpp"

namespace pollen::lcore {

struct CgroupLevel {
  std::string name;       // "/system.slice/app": the path as the kernel names it
  std::string directory;  // "/sys/fs/cgroup/system.slice/app"
};

struct Cgroup {
  unsigned version = 2;             // 1 or 2
  std::vector<CgroupLevel> levels;  // own cgroup first, then its parents up to the mount; never empty
};

// The cgroup that controls this process through controller ("cpuset", "cpu").
std::optional<Cgroup> find_cgroup(const Host& host, std::string_view controller);

}  // namespace pollen::lcore
