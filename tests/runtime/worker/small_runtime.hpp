// Plans and options for runs of small workers, with lcore locks of their own.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "pollen/lcore/affinity.hpp"
#include "pollen/lcore/plan.hpp"
#include "pollen/worker/runtime.hpp"
#include "small_worker.hpp"

namespace pollen::worker {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "pollen-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The first `most` CPUs that this thread may use.
inline lcore::Plan small_plan(std::size_t most) {
  lcore::Plan plan;
  for (const unsigned cpu : lcore::affinity())
    if (plan.lcores.size() < most) plan.lcores.push_back({.cpu = cpu});
  return plan;
}

inline RuntimeOptions small_runtime(const TemporaryDirectory& locks) {
  RuntimeOptions options;
  options.worker = small_worker();
  options.lock_directory = locks.path();
  options.handle_signals = false;
  return options;
}

}  // namespace pollen::worker
