#include "options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>

#include "numbers.hpp"
#include "pollen/base/error.hpp"

namespace pollen::bw {

namespace {

[[noreturn]] void refuse(std::string why, std::string remedy) {
  throw Error(EINVAL, {.attempted = "read the options", .why = std::move(why), .remedy = std::move(remedy)});
}

// What is written down before it can be made sense of: options in any order.
struct Raw {
  std::string op, connection, size, iterations, duration, qps;
  std::string tx_depth, rx_depth, post_list, cq_mod, inline_bytes;
  bool all = false, bidirectional = false, validate = false, infinite = false, with_imm = false, json = false;
  std::string rate, rate_unit = "g", port, device_port, gid, mtu, json_file, corrupt;
  std::vector<std::string> expect;
  std::string wire;
};

void add_test(CLI::App& app, Raw& raw) {
  const std::string group = "Test (either side may leave them to the other)";
  const auto text = [&](const char* names, std::string& out, const char* type, const char* help) {
    app.add_option(names, out, help)->type_name(type)->group(group);
  };
  text("--op", raw.op, "OP", "send, write, read or write_imm (default: write)");
  app.add_flag("--write_with_imm", raw.with_imm, "The same as --op write_imm")->group(group);
  text("-c,--connection", raw.connection, "TYPE", "RC or UD (default: RC); UD only with --op send");
  text("-s,--size", raw.size, "BYTES", "Size of a message; K, M, G may follow (default: 64K, of UD 2K)");
  app.add_flag("-a,--all", raw.all, "All sizes from 2 bytes to 8 MiB, of UD to the MTU")->group(group);
  text("-n,--iters", raw.iterations, "N", "Messages per QP (default: 1000, of writes 5000)");
  text("-D,--duration", raw.duration, "SECONDS", "Run so long instead");
  app.add_flag("--run_infinitely", raw.infinite, "Run until Ctrl-C; a row each -D seconds (default: 5)")
      ->group(group);
  text("-q,--qp", raw.qps, "N", "QPs per lcore (default: 1)");
  app.add_flag("-b,--bidirectional", raw.bidirectional, "Both sides send")->group(group);
  app.add_flag("--data_validation", raw.validate, "Check every byte that is received; costs time")
      ->group(group);
}

void add_side(CLI::App& app, Raw& raw) {
  const std::string group = "Depths (each side's own; what is not given is as on the other side)";
  const auto text = [&](const char* names, std::string& out, const char* type, const char* help) {
    app.add_option(names, out, help)->type_name(type)->group(group);
  };
  text("-t,--tx-depth", raw.tx_depth, "N", "Messages under way per QP (default: 128)");
  text("-r,--rx-depth", raw.rx_depth, "N", "Receives posted per QP (default: 512)");
  text("-l,--post_list", raw.post_list, "N", "Requests per doorbell (default: as many as there is room for)");
  text("-Q,--cq-mod", raw.cq_mod, "N",
       "A completion for every N-th (default: 100 or a quarter of -t, above 8 KiB 1)");
  text("-I,--inline_size", raw.inline_bytes, "BYTES", "Messages up to this size go inline (default: 0)");
  text("--rate_limit", raw.rate, "RATE",
       "Of this side's lcores together; in Gb/s, or with a unit as in 5GiB/s, 2M/s");
  text("--rate_units", raw.rate_unit, "M|g|p",
       "Unit of a plain --rate_limit: MiB/s, Gb/s or messages/s (default: g)");
  text("--corrupt_message", raw.corrupt, "N",
       "Damage message N of the first QP, to see --data_validation find it; where the data comes from");
}

void add_device(CLI::App& app, Raw& raw, Options& options) {
  const std::string driver_help =
      fmt::format("auto or one of {} (default: auto, the first that has the device)",
                  fmt::join(driver::built_in_drivers(), ", "));
  const std::string group = "Device and connection";
  const auto text = [&](const char* names, std::string& out, const char* type, const std::string& help) {
    app.add_option(names, out, help)->type_name(type)->group(group);
  };
  text("--driver", options.driver, "NAME", driver_help);
  text("-d,--ib-dev", options.device, "NAME", "Device (default: the first)");
  text("-i,--ib-port", raw.device_port, "N", "Port of the device (default: 1)");
  text("-x,--gid-index", raw.gid, "N", "GID (default: one of a kind that both sides have)");
  text("-m,--mtu", raw.mtu, "BYTES", "256 to 4096 (default: the port's; the smaller of both sides holds)");
  text("-p,--port", raw.port, "N", "TCP port of the handshake (default: 18515)");
  app.add_flag("--loopback", options.loopback,
               "Both sides in this process: half of the lcores serve the other half; one lcore does both")
      ->group(group);
  text("--soft-faults", options.driver_options.soft_faults, "SPEC",
       "Software NIC: loss=1e-3,reorder=0.01,seed=7,…");
  text("--soft-pcap", options.driver_options.soft_pcap, "FILE",
       "Software NIC: write the packets that this process sends; two processes need two files");
  text("--soft-wire", raw.wire, "WIRE", "Software NIC: shm (default), or inproc with --loopback");
  app.add_flag("--soft-copy", options.driver_options.soft_copy,
               "Software NIC: never hand memory over by reference")
      ->group(group);
}

void add_report(CLI::App& app, Raw& raw, Options& options) {
  const std::string group = "Report";
  app.add_flag("--report_gbits", options.gbits, "Gb/s (10^9 bits) in place of MiB/s (2^20 bytes)")
      ->group(group);
  app.add_flag("--cpu_util", options.cpu_util, "A column with the busy share of the lcore")->group(group);
  app.add_flag("--out_json", raw.json, "Write the report as JSON to perftest_out.json")->group(group);
  app.add_option("--out_json_file", raw.json_file, "Write it here; - is standard output")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--expect", raw.expect,
                 "A threshold like bw>=10Gb/s, rate>=4M/s, lost<=1%; exit code 3 if not met")
      ->type_name("FIGURE>=BOUND")
      ->group(group)
      ->allow_extra_args(false);
  app.add_flag("-F,--CPU-freq", options.quiet_frequency, "No warning about the CPU's frequency governor")
      ->group(group);
}

void set(Given& given, const char* name, const std::string& value) {
  if (!value.empty()) given[name] = value;
}
void set_number(Given& given, const char* name, const std::string& value) {
  if (!value.empty()) given[name] = std::to_string(parse_size(value));
}

std::string length_of(const Raw& raw, Options& options) {
  if (!raw.iterations.empty() && (raw.infinite || !raw.duration.empty()))
    refuse("-n says how many, and -D or --run_infinitely how long", "Give one of them");
  if (!raw.duration.empty()) options.interval_s = parse_whole(raw.duration);
  if (raw.infinite) {
    if (options.interval_s == 0) refuse("rows 0 seconds apart never end", "Give a -D of 1 or more");
    return "until stopped";
  }
  if (!raw.duration.empty()) return fmt::format("{} seconds", parse_whole(raw.duration));
  if (!raw.iterations.empty()) return fmt::format("{} iterations", parse_whole(raw.iterations));
  return {};
}

void read_test(const Raw& raw, Options& options) {
  Given& given = options.given;
  if (raw.with_imm && !raw.op.empty() && raw.op != "write_imm")
    refuse(fmt::format("--op {} and --write_with_imm exclude each other", raw.op), "Give one of them");
  set(given, parameter::op, raw.with_imm ? "write_imm" : raw.op);
  set(given, parameter::connection, raw.connection);
  if (raw.all && !raw.size.empty()) refuse("-a and -s exclude each other", "Give one of them");
  if (raw.all) given[parameter::size] = "all";
  set_number(given, parameter::size, raw.size);
  set(given, parameter::length, length_of(raw, options));
  set_number(given, parameter::qps, raw.qps);
  if (raw.bidirectional) given[parameter::direction] = "both ways";
  if (raw.validate) given[parameter::validation] = "on";
  set_number(given, parameter::tx_depth, raw.tx_depth);
  set_number(given, parameter::rx_depth, raw.rx_depth);
  set_number(given, parameter::post_list, raw.post_list);
  set_number(given, parameter::signal_every, raw.cq_mod);
  set_number(given, parameter::inline_bytes, raw.inline_bytes);
  if (options.lcores.lcores && !options.loopback)
    given[parameter::lcores] = std::to_string(options.lcores.lcores->size());
  if (!raw.corrupt.empty()) {
    options.corrupt_message = parse_whole(raw.corrupt);
    if (!raw.validate) refuse("--corrupt_message is of use only with --data_validation", "Add it");
  }
  read_parameters(given);  // refuses here what makes no sense, whatever the peer says
}

void read_rate(const Raw& raw, Options& options) {
  if (raw.rate.empty()) return;
  std::string_view rest = raw.rate;
  const auto number = take_number(rest);
  Rate rate;
  if (number && rest.empty()) {
    if (raw.rate_unit == "M")
      rate = {*number * 8 * 1048576, false};
    else if (raw.rate_unit == "g")
      rate = {*number * 1e9, false};
    else if (raw.rate_unit == "p")
      rate = {*number, true};
    else
      refuse(fmt::format("--rate_units {} is none", raw.rate_unit),
             "Give M (MiB/s), g (Gb/s) or p (messages/s)");
  } else {
    rate = parse_rate(raw.rate);
  }
  if (rate.per_second <= 0)
    refuse(fmt::format("a --rate_limit of {} lets nothing through", raw.rate), "Give one above 0");
  options.limit = rate.per_second;
  options.limit_is_messages = rate.of_messages;
}

std::uint32_t read_number(const std::string& text, const char* what, std::uint64_t least,
                          std::uint64_t most) {
  const std::uint64_t number = parse_whole(text);
  if (number < least || number > most)
    refuse(fmt::format("{} {} is out of range", what, text), fmt::format("It is {} to {}", least, most));
  return static_cast<std::uint32_t>(number);
}

void read_device(const Raw& raw, Options& options) {
  if (!raw.port.empty())
    options.port = static_cast<std::uint16_t>(read_number(raw.port, "port (-p)", 1, 65535));
  if (!raw.device_port.empty())
    options.device_port = read_number(raw.device_port, "device port (-i)", 1, 255);
  if (!raw.gid.empty()) options.gid_index = read_number(raw.gid, "GID index (-x)", 0, 65535);
  if (!raw.mtu.empty()) {
    const std::uint32_t mtu = read_number(raw.mtu, "MTU (-m)", 256, 4096);
    if ((mtu & (mtu - 1)) != 0) refuse(fmt::format("{} is no MTU", mtu), "Give 256, 512, 1024, 2048 or 4096");
    options.mtu_bytes = mtu;
  }
  if (!raw.wire.empty() && raw.wire != "shm" && raw.wire != "inproc")
    refuse(fmt::format("there is no wire '{}'", raw.wire), "Give shm or inproc");
  options.driver_options.soft_in_process = raw.wire == "inproc";
  if (options.driver_options.soft_in_process && !options.loopback)
    refuse("--soft-wire inproc reaches this process only", "Add --loopback, or use shm");
  if (options.loopback && !options.server.empty())
    refuse("--loopback is both sides, and a server was named too", "Leave out one of them");
  if (options.loopback && options.lcores.lcores && options.lcores.lcores->size() > 1 &&
      options.lcores.lcores->size() % 2 != 0)
    refuse(fmt::format("--loopback needs as many lcores for one side as for the other, and {} were named",
                       options.lcores.lcores->size()),
           "Name an even number, or one that both share");
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  Raw raw;
  CLI::App app{
      "RDMA bandwidth test. The server is started without an address, the client with the server's.\n"
      "Exit codes: 0 all well, 1 the test failed, 2 the options make no sense, 3 an --expect was not met,\n"
      "4 --data_validation found damage, 130 Ctrl-C.",
      "rdma_bw"};
  app.add_option("server", options.server, "Host of the server, or host:port; without it this is the server")
      ->type_name("HOST");
  add_test(app, raw);
  add_side(app, raw);
  add_device(app, raw, options);
  add_report(app, raw, options);
  lcore::add_lcore_options(app, options.lcores);
  try {
    lcore::parse_command_line(app, options.lcores, argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    refuse(error.what(), "rdma_bw --help lists the options");
  }
  read_device(raw, options);
  read_test(raw, options);
  read_rate(raw, options);
  if (!raw.json_file.empty())
    options.json_path = raw.json_file;
  else if (raw.json)
    options.json_path = "perftest_out.json";
  for (const std::string& text : raw.expect) options.expectations.push_back(parse_expectation(text));
  return options;
}

}  // namespace pollen::bw
