// RDMA bandwidth between two sides, with perftest's flags and columns. See docs/rdma_bw.md.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdio>

#include "options.hpp"
#include "pollen/base/error.hpp"
#include "session.hpp"

namespace {

using namespace pollen;

// What a person reads goes to standard error, so that standard output is the report and nothing else.
void set_up_log() {
  auto log = spdlog::stderr_color_mt("rdma_bw");
  log->set_pattern("%^%l%$: %v");
  spdlog::set_default_logger(std::move(log));
}

int failed(const std::exception& error, int code) {
  std::fprintf(stderr, "rdma_bw: %s\n", error.what());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  set_up_log();
  std::optional<bw::Options> options;
  try {
    options = bw::parse_options(argc, argv);
    if (!options) return bw::exit_well;
  } catch (const std::exception& error) {
    return failed(error, bw::exit_usage);
  }
  try {
    bw::Stop stop;
    try {
      const int code = bw::run_session(*options, stop);
      const int signal = stop.look();
      return signal != 0 ? bw::exit_signal + signal : code;
    } catch (const Error& error) {
      const int signal = stop.look();
      if (signal != 0 && error.code().value() == ECANCELED) return bw::exit_signal + signal;
      const bool usage = error.code().value() == EINVAL;
      return failed(error, usage ? bw::exit_usage : bw::exit_failed);
    }
  } catch (const std::exception& error) {
    return failed(error, bw::exit_failed);
  }
}
