#include "pollen/memory/memlock.hpp"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <string>

#include "pollen/base/error.hpp"
#include "pollen/memory/page.hpp"

namespace pollen::memory {

MemlockStatus memlock_status() {
  MemlockStatus status;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    throw Error(errno, {.attempted = "read the limit on pinned memory (RLIMIT_MEMLOCK)"});
  }
  if (limit.rlim_cur != RLIM_INFINITY) status.limit_bytes = limit.rlim_cur;

  // VmPin is what the kernel holds against the limit when memory is registered; what mlock()
  // holds (VmLck) is accounted apart.
  std::ifstream file("/proc/thread-self/status");
  for (std::string line; std::getline(file, line);) {
    const auto value_of = [&line](std::string_view key, int base) {
      std::uint64_t value = 0;
      const auto start = line.find_first_not_of(" \t", key.size());
      if (start != std::string::npos) {
        std::from_chars(line.data() + start, line.data() + line.size(), value, base);
      }
      return value;
    };
    if (line.starts_with("VmPin:")) {
      status.pinned_bytes = value_of("VmPin:", 10) * 1024;
    } else if (line.starts_with("CapEff:")) {
      status.privileged = (value_of("CapEff:", 16) >> CAP_IPC_LOCK & 1) != 0;
    }
  }
  return status;
}

void require_memlock(std::uint64_t planned_bytes, std::string_view purpose) {
  const MemlockStatus status = memlock_status();
  if (status.privileged || !status.limit_bytes) return;
  const std::uint64_t limit = *status.limit_bytes;
  const std::uint64_t left = limit > status.pinned_bytes ? limit - status.pinned_bytes : 0;
  if (planned_bytes <= left) return;

  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t need =
      planned_bytes > most - status.pinned_bytes ? most : planned_bytes + status.pinned_bytes;
  const std::uint64_t need_kib = need / 1024 + (need % 1024 != 0 ? 1 : 0);
  std::string why = fmt::format("RLIMIT_MEMLOCK is {} and {} are needed", size_text(limit), size_text(need));
  if (status.pinned_bytes != 0) {
    why += fmt::format(" ({} are pinned already)", size_text(status.pinned_bytes));
  }
  throw Error(ENOMEM, {.attempted = fmt::format("pin {} for {}", size_text(planned_bytes), purpose),
                       .why = std::move(why),
                       .remedy = fmt::format(
                           "Raise it: ulimit -l {0}, or \"memlock {0}\" in /etc/security/limits.conf, or "
                           "in a container --ulimit memlock={1}:{1} or --cap-add IPC_LOCK",
                           need_kib, need)});
}

}  // namespace pollen::memory
