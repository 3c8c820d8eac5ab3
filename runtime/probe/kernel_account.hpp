// What the kernel has accounted for one thread and for the CPU it runs on.
//
// Units: nanoseconds and pieces, since the thread began (the CPU's: since boot, to the tick, 10 ms
// as a rule). What this kernel doesn't tell is absent, never 0.
// Thread rules: any thread of the process may read of any other that lives. Reads /proc: control
// path only. Errors: none; an unreadable file is an absent number.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace pollen::probe {

struct KernelAccount {
  std::optional<std::uint64_t> runqueue_wait_ns = {};  // ready to run while the CPU was another's
  std::optional<std::uint64_t> voluntary_switches = {};
  std::optional<std::uint64_t> involuntary_switches = {};
  std::optional<std::uint64_t> migrations = {};
  std::optional<std::uint64_t> steal_ns = {};      // of the CPU: the hypervisor ran something else
  std::optional<std::uint64_t> interrupt_ns = {};  // of the CPU: hard and soft interrupts
};

pid_t current_thread_id() noexcept;

// cpu: whose steal and interrupt time is read; -1 for none.
KernelAccount read_kernel_account(pid_t thread_id, int cpu);

// What was accounted between two readings; absent where either is.
KernelAccount operator-(const KernelAccount& later, const KernelAccount& earlier) noexcept;

}  // namespace pollen::probe
