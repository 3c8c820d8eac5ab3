// One side of a test, from the connected socket to the last round: workers on its lcores, the exchange of
// results with the other side.
//
// Thread rules: one thread per side. Errors: pollen::Error; the peer is told the reason.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "control.hpp"
#include "flow.hpp"
#include "options.hpp"
#include "outcome.hpp"
#include "parameters.hpp"
#include "pollen/drivers/driver.hpp"
#include "pollen/lcore/idle.hpp"
#include "pollen/lcore/plan.hpp"
#include "pollen/net/hello.hpp"
#include "pollen/net/socket.hpp"

namespace pollen::bw {

// What one side needs to know of a test that has been agreed on.
struct SideSetup {
  const Options& options;
  driver::Device& device;
  lcore::Plan plan;  // as many lcores as the test has
  TestParameters test;
  net::Role role = net::Role::client;
  std::uint32_t mtu_bytes = 0;
  driver::GidEntry gid{};
  std::uint16_t lid = 0;

  Activity activity() const noexcept {
    return {.active = role == net::Role::client || test.both_ways,
            .passive = role == net::Role::server || test.both_ways};
  }
};

struct Round {
  std::uint64_t size = 0;  // bytes of a message
  Layout layout;
  std::uint32_t signal_every = 1;
  SideOutcome mine;
  SideOutcome theirs;
};

// What the messages counted so far on this side are, while a round runs.
struct Progress {
  std::uint64_t size = 0;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  bool running = false;
};

// look: called every few milliseconds by the thread that runs the side, returns whether a signal came.
using Look = std::function<bool(const Progress&)>;

// Runs the round and exchanges results.
Round run_round(const SideSetup& setup, std::uint64_t size, net::Socket& socket, int stop_fd,
                const Look& look);

// The sizes of the test that the MTU lets through.
std::vector<std::uint64_t> sizes_of(const SideSetup& setup);

}  // namespace pollen::bw
