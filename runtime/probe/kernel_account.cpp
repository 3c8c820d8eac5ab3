#include "pollen/probe/kernel_account.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace pollen::probe {

namespace {

using Number = std::optional<std::uint64_t>;

// The number at the end of "key …  : 12" or "key:\t12".
Number number_after_colon(std::string_view line) {
  const auto colon = line.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto start = line.find_first_not_of(" \t", colon + 1);
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(line.data() + start, line.data() + line.size(), value);
  return parsed.ec == std::errc{} ? Number(value) : std::nullopt;
}

Number difference(Number later, Number earlier) noexcept {
  if (!later || !earlier) return std::nullopt;
  return *later > *earlier ? *later - *earlier : 0;
}

}  // namespace

pid_t current_thread_id() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

KernelAccount read_kernel_account(pid_t thread_id, int cpu) {
  KernelAccount account;
  const std::string directory = fmt::format("/proc/self/task/{}/", thread_id);

  std::uint64_t run_ns = 0;
  std::uint64_t wait_ns = 0;
  if (std::ifstream(directory + "schedstat") >> run_ns >> wait_ns) account.runqueue_wait_ns = wait_ns;

  std::ifstream status(directory + "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("voluntary_ctxt_switches:")) account.voluntary_switches = number_after_colon(line);
    if (line.starts_with("nonvoluntary_ctxt_switches:"))
      account.involuntary_switches = number_after_colon(line);
  }

  std::ifstream sched(directory + "sched");
  for (std::string line; std::getline(sched, line);) {
    if (line.starts_with("se.nr_migrations")) account.migrations = number_after_colon(line);
  }

  if (cpu < 0) return account;
  const std::string ours = fmt::format("cpu{} ", cpu);
  const auto tick_ns = 1'000'000'000U / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line);) {
    if (!line.starts_with(ours)) continue;
    std::istringstream fields(line.substr(ours.size()));
    std::uint64_t user = 0;
    std::uint64_t nice = 0;
    std::uint64_t system = 0;
    std::uint64_t idle = 0;
    std::uint64_t iowait = 0;
    std::uint64_t irq = 0;
    std::uint64_t softirq = 0;
    std::uint64_t steal = 0;
    if (fields >> user >> nice >> system >> idle >> iowait >> irq >> softirq) {
      account.interrupt_ns = (irq + softirq) * tick_ns;
    }
    if (fields >> steal) account.steal_ns = steal * tick_ns;
    break;
  }
  return account;
}

KernelAccount operator-(const KernelAccount& later, const KernelAccount& earlier) noexcept {
  return {.runqueue_wait_ns = difference(later.runqueue_wait_ns, earlier.runqueue_wait_ns),
          .voluntary_switches = difference(later.voluntary_switches, earlier.voluntary_switches),
          .involuntary_switches = difference(later.involuntary_switches, earlier.involuntary_switches),
          .migrations = difference(later.migrations, earlier.migrations),
          .steal_ns = difference(later.steal_ns, earlier.steal_ns),
          .interrupt_ns = difference(later.interrupt_ns, earlier.interrupt_ns)};
}

}  // namespace pollen::probe
