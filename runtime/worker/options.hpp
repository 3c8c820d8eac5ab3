// How a worker is made. Sizes that the device can't give are cut to what it can; Worker::notes()
// says what was asked for and what was given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pollen/drivers/driver.hpp"
#include "pollen/lcore/idle.hpp"
#include "pollen/memory/arena.hpp"
#include "pollen/probe/preemption.hpp"
#include "pollen/probe/turn_timer.hpp"

namespace pollen::worker {

struct WorkerOptions {
  // Who and where. A Runtime fills these in.
  unsigned index = 0;           // among the workers of this process
  unsigned lcore = 0;           // the CPU, for reports; whoever makes the thread pins it
  int node = memory::any_node;  // NUMA node of the arena

  std::uint32_t device_port = 1;
  std::size_t arena_bytes = std::size_t{64} << 20;
  memory::PageKind largest_page = memory::PageKind::huge_1g;
  memory::PageKind smallest_page = memory::PageKind::plain;
  driver::Access arena_access = driver::all_access;
  std::uint32_t send_cq_entries = 4096;
  std::uint32_t recv_cq_entries = 4096;
  std::size_t mailbox_messages = 256;

  lcore::Idle idle = lcore::Idle::pause;
  std::uint32_t sleep_after_turns = 1000;    // empty ones in a row; Idle::sleep only
  std::uint64_t max_sleep_ns = 100'000'000;  // after which the app is polled in any case
  std::uint64_t drain_ns = 2'000'000'000;    // how long a stop waits for what is in flight

  std::uint32_t timing_period = probe::default_timing_period;  // the probe times 1 turn in so many
  probe::PreemptionOptions preemption = {};
};

}  // namespace pollen::worker
