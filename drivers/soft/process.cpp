#include "pollen/drivers/soft/process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>

namespace pollen::soft {

namespace {

// Field 22 of /proc/<pid>/stat, counted behind the last ')' as a program's name may hold
// anything. 0: no such process, or one that has ended and is only waiting to be collected.
std::uint64_t start_time_of(std::uint32_t pid) noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return 0;
  if (at[2] == 'Z' || at[2] == 'X') return 0;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at + 1, ' ');
    if (at == nullptr) return 0;
  }
  std::uint64_t value = 0;
  std::from_chars(at + 1, text + got, value);
  return value;
}

}  // namespace

ProcessId this_process() noexcept {
  // After a fork the child is another process: nothing is kept.
  const auto pid = static_cast<std::uint32_t>(getpid());
  return {pid, start_time_of(pid)};
}

bool is_alive(const ProcessId& process) noexcept {
  return process.pid != 0 && start_time_of(process.pid) == process.start_time;
}

}  // namespace pollen::soft
