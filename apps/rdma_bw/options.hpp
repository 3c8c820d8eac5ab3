// The command line of rdma_bw: perftest's flags with perftest's meaning, and Pollen's own.
//
// Thread rules: values. Errors: pollen::Error, EINVAL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "expect.hpp"
#include "parameters.hpp"
#include "pollen/drivers/registry.hpp"
#include "pollen/lcore/options.hpp"

namespace pollen::bw {

struct Options {
  lcore::LcoreOptions lcores;
  Given given;  // what both sides have to agree on, and each side's depths

  std::string server;  // empty: this is the server
  bool loopback = false;
  std::uint16_t port = 18515;
  std::string driver = "auto";
  driver::DriverOptions driver_options;
  std::string device;
  std::uint32_t device_port = 1;
  std::optional<std::uint32_t> gid_index;
  std::optional<std::uint32_t> mtu_bytes;
  bool quiet_frequency = false;  // -F

  double limit = 0;  // of all lcores together; 0: none
  bool limit_is_messages = false;
  std::uint64_t interval_s = 5;  // between the rows of --run_infinitely

  bool gbits = false;
  bool cpu_util = false;
  std::optional<std::string> json_path;  // "-": standard output
  std::vector<Expectation> expectations;
  std::optional<std::uint64_t> corrupt_message;

  bool is_client() const noexcept { return !server.empty() || loopback; }
};

// Nothing when help was asked for and printed.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace pollen::bw
