// Is the process that left this behind still there? A PID alone may have been given to another
// one since; with its start time it can't be mistaken.
#pragma once

#include <cstdint>

namespace pollen::soft {

struct ProcessId {
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;  // in clock ticks since boot, as /proc/<pid>/stat has it

  bool operator==(const ProcessId&) const = default;
};

ProcessId this_process() noexcept;
bool is_alive(const ProcessId& process) noexcept;

}  // namespace pollen::soft
