// What a test is, and how two sides come to the same one.
//
// A parameter that one side was given holds for both; given by both, it has to be the same, or for what
// each side has for itself (depths and the like) each keeps its own; given by none, it is the default.
// So a server needs no options. Values travel as text in the hello and are read with the same checks
// on both sides.
//
// Thread rules: values and pure functions. Errors: pollen::Error; EINVAL for a value that makes no
// sense, ECONNABORTED where two sides contradict each other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/net/hello.hpp"

namespace pollen::bw {

enum class Op : std::uint8_t { send, write, read, write_imm };
std::string_view name(Op op) noexcept;      // "write_imm"
std::string_view title(Op op) noexcept;     // "RDMA_Write" as perftest prints it
std::string_view option_values() noexcept;  // "send, write, read, write_imm"

// Those that were given, by name.
using Given = std::map<std::string, std::string, std::less<>>;

namespace parameter {
// The same on both sides.
inline constexpr const char* op = "op";
inline constexpr const char* connection = "connection";  // RC, UD
inline constexpr const char* size = "size";              // bytes, or "all"
inline constexpr const char* length = "length";          // "N iterations", "N seconds", "until stopped"
inline constexpr const char* qps = "qps";
inline constexpr const char* lcores = "lcores";          // their number
inline constexpr const char* direction = "direction";    // "one way", "both ways"
inline constexpr const char* validation = "validation";  // "off", "on"
// Each side's own.
inline constexpr const char* tx_depth = "tx-depth";
inline constexpr const char* rx_depth = "rx-depth";
inline constexpr const char* post_list = "post-list";
inline constexpr const char* signal_every = "signal-every";
inline constexpr const char* inline_bytes = "inline";
}  // namespace parameter

enum class LengthKind : std::uint8_t { iterations, seconds, until_stopped };

struct TestParameters {
  Op op = Op::write;
  driver::Transport transport = driver::Transport::rc;
  std::vector<std::uint64_t> sizes;  // bytes of a message, one round each
  LengthKind length = LengthKind::iterations;
  std::uint64_t amount = 0;  // iterations per QP, or seconds
  std::uint32_t qps = 1;     // per lcore
  std::uint32_t lcores = 1;
  bool both_ways = false;
  bool validate = false;

  std::uint32_t tx_depth = 128;
  std::uint32_t rx_depth = 512;
  std::uint32_t post_list = 0;     // 0: as many as there is room for
  std::uint32_t signal_every = 0;  // 0: by the size of the message
  std::uint32_t inline_bytes = 0;

  bool is_ud() const noexcept { return transport == driver::Transport::ud; }
};

// Reads what was given and fills in defaults. Ranges that no device exceeds are checked here.
TestParameters read_parameters(const Given& given);

// From what the client and the server were given: what holds on the side of `role`. Both sides call it
// with the same arguments and throw the same sentence.
Given settle(const Given& client, const Given& server, net::Role role);

// Throws an Error that names the limit, if this device can't run the test.
void require_possible(const TestParameters& test, const driver::Device& device, std::uint32_t mtu_bytes);

// Basic blocks that a send takes in the ring, at most.
std::uint32_t blocks_per_send(const TestParameters& test, const driver::Limits& limits) noexcept;

// What a -Q of 0 means: perftest's 100, but no more than a quarter of the depth, and every one above 8 KiB.
std::uint32_t signal_every(const TestParameters& test, std::uint64_t size) noexcept;

// perftest's sizes for -a: powers of two from 2 bytes to 8 MiB; for UD up to the MTU.
std::vector<std::uint64_t> all_sizes();

}  // namespace pollen::bw
