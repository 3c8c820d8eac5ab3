// A whole run, as server, as client or as both: lcores, device, handshake, rounds, report.
//
// Thread rules: the main thread. Errors: pollen::Error.
#pragma once

#include "options.hpp"
#include "stop.hpp"

namespace pollen::bw {

enum ExitCode : int {
  exit_well = 0,
  exit_failed = 1,
  exit_usage = 2,
  exit_not_met = 3,
  exit_damaged = 4,
  exit_signal = 128,  // plus its number
};

int run_session(const Options& options, Stop& stop);

}  // namespace pollen::bw
