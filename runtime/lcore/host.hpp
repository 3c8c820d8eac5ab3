// Where facts about the machine are read from: /proc and /sys beneath a root. "/" is the running
// machine; any other root is a recorded file tree that stands in for one.
//
// Paths are absolute, as on the machine itself. Thread rules: immutable, safe to share.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "pollen/lcore/cpu_set.hpp"

namespace pollen::lcore {

class Host {
 public:
  explicit Host(std::filesystem::path root = "/") : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  bool live() const { return root_ == "/"; }

  bool exists(std::string_view path) const;

  // The file without trailing blanks; nothing if it is missing or unreadable.
  std::optional<std::string> read(std::string_view path) const;

  // The file as a CPU list; nothing if it is missing. Throws pollen::Error if it is no list.
  std::optional<CpuSet> read_cpus(std::string_view path) const;

  // The file as a whole number; nothing if it is missing or something else.
  std::optional<long long> read_number(std::string_view path) const;

  // CPUs the calling thread may run on; of a recorded tree, those that /proc/self/status names.
  CpuSet affinity() const;

 private:
  std::filesystem::path beneath(std::string_view path) const;

  std::filesystem::path root_;
};

}  // namespace pollen::lcore
