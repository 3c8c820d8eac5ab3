// What a side has measured in one round, as its workers leave it and as the peer is told of it.
//
// Units: nanoseconds, pieces. Thread rules: values. Errors: reading the peer's throws pollen::Error,
// EBADMSG.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "pollen/probe/report.hpp"
#include "window_log.hpp"

namespace pollen::bw {

struct LcoreOutcome {
  unsigned lcore = 0;
  std::uint64_t sent = 0;         // messages that completed
  std::uint64_t duration_ns = 0;  // from the first post to the last completion
  std::uint64_t received = 0;     // messages, where the receiver is told of each
  std::uint64_t checked = 0;      // by --data_validation
  std::uint64_t damaged = 0;
  std::string first_damage;  // in words
  WindowSeries windows;      // of sent
  nlohmann::json probe;      // as in the JSON report
  std::string pages;         // of the arena
};

struct SideOutcome {
  std::vector<LcoreOutcome> lcores;
  bool interrupted = false;

  // Of this side only: what an outcome is made of.
  std::vector<probe::LcoreReport> reports;
  std::vector<std::string> notes;  // what differs from what was asked for
};

std::vector<std::byte> encode(const SideOutcome& outcome);
SideOutcome decode(std::span<const std::byte> bytes, std::size_t lcores);

}  // namespace pollen::bw
