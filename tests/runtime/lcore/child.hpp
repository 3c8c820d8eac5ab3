// Runs part of a test in a process of its own: what it may spoil (affinity, cgroup, locks, signals) goes
// with it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

namespace pollen::lcore {

class Child {
 public:
  // body runs in the child; say() sends a line to the parent; the result is the exit code. An exception
  // becomes the line what() and exit code 99.
  using Say = std::function<void(const std::string&)>;
  explicit Child(const std::function<int(const Say&)>& body);
  ~Child();  // kills and collects it, if it still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  std::optional<std::string> hear();  // the next line; nothing once it has ended, or after 10 s
  int finish();                       // exit code, or 128 + the signal that ended it; waits 10 s at most
  void kill(int signal) const;

 private:
  pid_t pid_ = -1;
  int read_fd_ = -1;
};

}  // namespace pollen::lcore
