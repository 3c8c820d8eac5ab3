#include "pollen/drivers/soft/uverbs/options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/directory.hpp"

namespace pollen::soft::uverbs {

namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view(value);
}

std::uint32_t number(const char* name, std::string_view text, std::uint32_t most) {
  std::uint32_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed == std::errc{} && end == text.data() + text.size() && value <= most) return value;
  throw Error(EINVAL, {.attempted = fmt::format("use {}={}", name, text),
                       .why = fmt::format("it is not a number from 0 to {}", most),
                       .remedy = "Set such a number, or unset it"});
}

Options read() {
  Options options;
  if (const auto text = variable("SOFTMLX5_DEVICE"); !text.empty())
    options.device = number("SOFTMLX5_DEVICE", text, max_devices - 1);
  if (const auto text = variable("SOFTMLX5_SPIN_TURNS"); !text.empty())
    options.spin_turns = number("SOFTMLX5_SPIN_TURNS", text, 1'000'000'000);
  if (const auto text = variable("SOFTMLX5_FAULTS"); !text.empty()) options.soft.faults = parse_faults(text);
  options.soft.pcap_path = variable("SOFTMLX5_PCAP");
  if (const auto at = options.soft.pcap_path.find("%p"); at != std::string::npos)
    options.soft.pcap_path.replace(at, 2, std::to_string(getpid()));
  return options;
}

}  // namespace

const Options& Options::get() {
  static const Options options = read();
  return options;
}

}  // namespace pollen::soft::uverbs
