// The command line of lcores. Two ways in:
//
//   app --lcores 0-3,8 --size 64             the long options stand among the app's own
//   app -l 0-3,8 --strict -- -l 16 -s 64     before a "--" DPDK's short ones too, where the app's own
//                                            -l and -c cannot be meant
//
//   --lcores LIST, -l LIST       core list: 0-3,8
//   --core-mask MASK, -c MASK    hexadecimal mask: 0xf
//   --realtime                   SCHED_FIFO
//   --strict                     findings about the lcores become errors
//   --idle spin|pause|sleep      what a worker does while there is nothing to do
//
// Thread rules: values. Errors: pollen::Error for what is before the "--" and for option values; CLI11's
// own exceptions for the app's part.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pollen/lcore/cpu_set.hpp"
#include "pollen/lcore/idle.hpp"

namespace CLI {
class App;
}

namespace pollen::lcore {

struct LcoreOptions {
  std::optional<CpuSet> lcores;  // not given: the plan chooses
  std::optional<Idle> idle;      // not given: default_idle()
  bool realtime = false;
  bool strict = false;
};

struct SplitArguments {
  std::vector<std::string> eal;  // before the first "--"; empty if there is none
  std::vector<std::string> app;  // the rest
};

// Without the program name.
SplitArguments split_arguments(int argc, const char* const* argv);

LcoreOptions parse_eal(const std::vector<std::string>& arguments);

// Adds the long options to an app's own. options must outlive app's parsing; what it holds from
// parse_eal stays, and cores named in both places are refused.
void add_lcore_options(CLI::App& app, LcoreOptions& options);

// All of it: splits, reads the part before a "--", and has app, to which add_lcore_options(app, options)
// was applied, parse the rest. Throws CLI::ParseError as CLI::App::parse does.
void parse_command_line(CLI::App& app, LcoreOptions& options, int argc, const char* const* argv);

}  // namespace pollen::lcore
