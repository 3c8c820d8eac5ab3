#include "parameters.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "numbers.hpp"
#include "pollen/base/error.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::bw {

namespace {

struct Known {
  const char* name;
  bool own;            // each side's own
  const char* option;  // as the user gave it
};
constexpr std::array known{
    Known{parameter::op, false, "--op"},        Known{parameter::connection, false, "-c"},
    Known{parameter::size, false, "-s"},        Known{parameter::length, false, "-n, -D or --run_infinitely"},
    Known{parameter::qps, false, "-q"},         Known{parameter::lcores, false, "--lcores"},
    Known{parameter::direction, false, "-b"},   Known{parameter::validation, false, "--data_validation"},
    Known{parameter::tx_depth, true, "-t"},     Known{parameter::rx_depth, true, "-r"},
    Known{parameter::post_list, true, "-l"},    Known{parameter::signal_every, true, "-Q"},
    Known{parameter::inline_bytes, true, "-I"},
};

const Known* find(std::string_view name) {
  const auto at = std::ranges::find_if(known, [&](const Known& one) { return one.name == name; });
  return at == known.end() ? nullptr : &*at;
}

[[noreturn]] void refuse(std::string_view name, std::string_view value, std::string why, std::string remedy) {
  const Known* one = find(name);
  throw Error(EINVAL, {.attempted = fmt::format("run a test with {} {} ({})", name, value,
                                                one == nullptr ? "unknown" : one->option),
                       .why = std::move(why),
                       .remedy = std::move(remedy)});
}

constexpr std::uint64_t max_message_bytes = std::uint64_t{1} << 30;
constexpr std::uint64_t max_iterations = 1'000'000'000'000;
constexpr std::uint64_t max_seconds = 31'536'000;
constexpr std::uint32_t max_qps = 16384;
constexpr std::uint32_t max_lcores = 1024;

class Reader {
 public:
  explicit Reader(const Given& given) : given_(given) {}

  const std::string* text(const char* name) const {
    const auto at = given_.find(std::string_view(name));
    return at == given_.end() ? nullptr : &at->second;
  }
  template <typename T>
  void number(const char* name, T& out, std::uint64_t least, std::uint64_t most) const {
    if (const std::string* value = text(name)) out = static_cast<T>(in_range(name, *value, least, most));
  }
  bool chosen(const char* name, std::string_view yes, std::string_view no) const {
    const std::string* value = text(name);
    if (value == nullptr || *value == no) return false;
    if (*value != yes)
      refuse(name, *value, "there is no such choice", fmt::format("It is {} or {}", yes, no));
    return true;
  }
  static std::uint64_t in_range(const char* name, const std::string& value, std::uint64_t least,
                                std::uint64_t most) {
    const std::uint64_t number = parse_whole(value);
    if (number < least || number > most)
      refuse(name, value, fmt::format("it has to be {} to {}", least, most), "Choose a number in that range");
    return number;
  }

 private:
  const Given& given_;
};

Op read_op(const std::string& value) {
  for (const Op op : {Op::send, Op::write, Op::read, Op::write_imm})
    if (value == name(op)) return op;
  refuse(parameter::op, value, "there is no such operation", fmt::format("It is one of {}", option_values()));
}

driver::Transport read_connection(const std::string& value) {
  if (value == "RC") return driver::Transport::rc;
  if (value == "UD") return driver::Transport::ud;
  refuse(parameter::connection, value, "there is no such connection type here", "It is RC or UD");
}

std::vector<std::uint64_t> read_sizes(const std::string& value, bool ud) {
  if (value == "all") {
    auto sizes = all_sizes();
    // What a datagram may have depends on the MTU, which bounds it once more; 4096 is the largest.
    if (ud) std::erase_if(sizes, [](std::uint64_t size) { return size > 4096; });
    return sizes;
  }
  const std::uint64_t size = parse_size(value);
  if (size == 0)
    refuse(parameter::size, value, "a message of 0 bytes has no bandwidth",
           "Choose a size from 1 byte to 1 GiB");
  if (size > max_message_bytes)
    refuse(parameter::size, value, "a message can have 1 GiB at most", "Choose a size from 1 byte to 1 GiB");
  return {size};
}

void read_length(const std::string& value, TestParameters& test) {
  if (value == "until stopped") {
    test.length = LengthKind::until_stopped;
    return;
  }
  const std::size_t space = value.find(' ');
  const std::string number = value.substr(0, space);
  const std::string unit = space == std::string::npos ? "" : value.substr(space + 1);
  if (unit == "iterations") {
    test.length = LengthKind::iterations;
    test.amount = Reader::in_range(parameter::length, number, 1, max_iterations);
  } else if (unit == "seconds") {
    test.length = LengthKind::seconds;
    test.amount = Reader::in_range(parameter::length, number, 1, max_seconds);
  } else {
    refuse(parameter::length, value, "it names neither iterations nor seconds", "Give -n or -D");
  }
}

}  // namespace

std::string_view name(Op op) noexcept {
  constexpr std::array<std::string_view, 4> names{"send", "write", "read", "write_imm"};
  return names[static_cast<std::size_t>(op)];
}

std::string_view title(Op op) noexcept {
  constexpr std::array<std::string_view, 4> titles{"Send", "RDMA_Write", "RDMA_Read", "RDMA_Write_with_imm"};
  return titles[static_cast<std::size_t>(op)];
}

std::string_view option_values() noexcept { return "send, write, read, write_imm"; }

std::vector<std::uint64_t> all_sizes() {
  std::vector<std::uint64_t> sizes;
  for (unsigned shift = 1; shift <= 23; ++shift) sizes.push_back(std::uint64_t{1} << shift);
  return sizes;
}

TestParameters read_parameters(const Given& given) {
  const Reader reader(given);
  for (const auto& [name, value] : given)
    if (find(name) == nullptr)
      refuse(name, value, "this release knows no such parameter", "Use the same release on both sides");
  TestParameters test;
  if (const std::string* op = reader.text(parameter::op)) test.op = read_op(*op);
  if (const std::string* value = reader.text(parameter::connection)) test.transport = read_connection(*value);
  if (test.is_ud() && test.op != Op::send)
    refuse(parameter::op, name(test.op), "a UD QP can only SEND", "Use --op send with -c UD, or RC");
  const std::string* size = reader.text(parameter::size);
  test.sizes = size != nullptr ? read_sizes(*size, test.is_ud())
                               : std::vector<std::uint64_t>{test.is_ud() ? 2048U : 65536U};
  test.amount = test.op == Op::write || test.op == Op::write_imm ? 5000 : 1000;
  if (const std::string* length = reader.text(parameter::length)) read_length(*length, test);
  if (test.sizes.size() > 1 && test.length == LengthKind::until_stopped)
    refuse(parameter::size, "all", "a test that never ends gets no further than the first size",
           "Leave out -a or --run_infinitely");
  reader.number(parameter::qps, test.qps, 1, max_qps);
  reader.number(parameter::lcores, test.lcores, 1, max_lcores);
  test.both_ways = reader.chosen(parameter::direction, "both ways", "one way");
  test.validate = reader.chosen(parameter::validation, "on", "off");
  constexpr std::uint64_t any = std::uint32_t{1} << 30;  // the device says what it can do
  reader.number(parameter::tx_depth, test.tx_depth, 1, any);
  reader.number(parameter::rx_depth, test.rx_depth, 1, any);
  reader.number(parameter::post_list, test.post_list, 1, any);
  reader.number(parameter::signal_every, test.signal_every, 1, any);
  reader.number(parameter::inline_bytes, test.inline_bytes, 0, any);
  if (test.post_list > test.tx_depth)
    refuse(parameter::post_list, std::to_string(test.post_list),
           fmt::format("no more than the {} of the depth (-t) can be posted at once", test.tx_depth),
           "Give a smaller -l or a larger -t");
  return test;
}

Given settle(const Given& client, const Given& server, net::Role role) {
  const Given& mine = role == net::Role::client ? client : server;
  Given settled = role == net::Role::client ? server : client;
  std::vector<std::string> conflicts;
  for (const auto& [name, value] : mine) {
    const Known* one = find(name);
    const auto theirs = settled.find(name);
    if (theirs != settled.end() && theirs->second != value && one != nullptr && !one->own)
      conflicts.push_back(fmt::format("{} ({}): the client has {}, the server {}", name, one->option,
                                      client.at(name), server.at(name)));
    settled[name] = value;
  }
  if (!conflicts.empty())
    throw Error(ECONNABORTED,
                {.attempted = "agree with the peer",
                 .why = fmt::format("{}", fmt::join(conflicts, "; ")),
                 .remedy = "Give both sides the same, or only one of them: the other adopts it"});
  return settled;
}

void require_possible(const TestParameters& test, const driver::Device& device, std::uint32_t mtu_bytes) {
  const driver::Limits& limits = device.limits();
  const auto require = [&](std::uint64_t asked, std::uint64_t most, const std::string& what,
                           const char* remedy) {
    if (asked <= most) return;
    throw Error(EINVAL, {.attempted = fmt::format("run a test with {} {}", asked, what),
                         .on = device.info().name,
                         .why = fmt::format("the device allows {} at most", most),
                         .remedy = remedy});
  };
  const std::uint32_t blocks = blocks_per_send(test, limits);
  require(test.tx_depth, limits.max_send_wrs / blocks, "sends per QP (-t)",
          blocks == 1 ? "Give a smaller -t" : "Give a smaller -t or -I");
  require(test.rx_depth, limits.max_recv_wrs, "receives per QP (-r)", "Give a smaller -r");
  require(test.qps, limits.max_qps, "QPs per lcore (-q)", "Give a smaller -q");
  // One completion queue per lcore for each direction, with room for all that may complete.
  require(std::uint64_t{test.qps} * (test.tx_depth + 2), limits.max_cq_entries,
          "entries in the send completion queue of an lcore", "Give a smaller -q or -t, or more lcores");
  require(std::uint64_t{test.qps} * test.rx_depth, limits.max_cq_entries,
          "entries in the receive completion queue of an lcore", "Give a smaller -q or -r, or more lcores");
  const std::uint64_t largest = test.sizes.back();
  require(largest, limits.max_message_bytes, "bytes in a message (-s)", "Give a smaller -s");
  if (test.is_ud() && largest > mtu_bytes && test.sizes.size() == 1)
    throw Error(EMSGSIZE, {.attempted = fmt::format("send datagrams of {} bytes", largest),
                           .on = device.info().name,
                           .why = fmt::format("a datagram is one packet, and the MTU is {} bytes", mtu_bytes),
                           .remedy = "Give a smaller -s, or use RC"});
}

std::uint32_t blocks_per_send(const TestParameters& test, const driver::Limits& limits) noexcept {
  const std::uint32_t head = test.is_ud() ? 4 : 2;
  const std::uint32_t inline_bytes = std::min(test.inline_bytes, limits.max_inline_bytes);
  const std::uint32_t data = inline_bytes == 0 ? 1 : queue::inline_segments(inline_bytes);
  return queue::blocks_of_segments(std::max(head + data, 4U));
}

std::uint32_t signal_every(const TestParameters& test, std::uint64_t size) noexcept {
  if (test.signal_every != 0) return std::min(test.signal_every, test.tx_depth);
  if (size > 8192) return 1;
  return std::clamp(test.tx_depth / 4, 1U, 100U);
}

}  // namespace pollen::bw
