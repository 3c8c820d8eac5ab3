#include "numbers.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>

#include "pollen/base/error.hpp"

namespace pollen::bw {

namespace {

[[noreturn]] void refuse(const char* what, std::string_view text, std::string why, std::string remedy) {
  throw Error(EINVAL, {.attempted = fmt::format("read '{}' as {}", text, what),
                       .why = std::move(why),
                       .remedy = std::move(remedy)});
}

std::uint64_t take_whole(std::string_view& rest, std::string_view all, const char* what, const char* remedy) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error == std::errc::result_out_of_range) refuse(what, all, "it is beyond what 64 bits hold", remedy);
  if (error != std::errc{}) refuse(what, all, "it does not begin with a number", remedy);
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return value;
}

}  // namespace

std::uint64_t parse_size(std::string_view text) {
  constexpr const char* remedy = "Write a whole number of bytes, or with K, M or G behind it: 64K";
  std::string_view rest = text;
  const std::uint64_t number = take_whole(rest, text, "a size", remedy);
  unsigned shift = 0;
  if (rest == "K" || rest == "k")
    shift = 10;
  else if (rest == "M" || rest == "m")
    shift = 20;
  else if (rest == "G" || rest == "g")
    shift = 30;
  else if (!rest.empty())
    refuse("a size", text, fmt::format("'{}' is no unit", rest), remedy);
  if (number > std::numeric_limits<std::uint64_t>::max() >> shift)
    refuse("a size", text, "it is beyond what 64 bits hold", remedy);
  return number << shift;
}

std::uint64_t parse_whole(std::string_view text) {
  constexpr const char* remedy = "Write a whole number";
  std::string_view rest = text;
  const std::uint64_t number = take_whole(rest, text, "a number", remedy);
  if (!rest.empty()) refuse("a number", text, fmt::format("'{}' is behind it", rest), remedy);
  return number;
}

std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  while (text.starts_with(' ')) text.remove_prefix(1);
  return value;
}

Rate parse_rate(std::string_view text) {
  std::string_view rest = text;
  const auto number = take_number(rest);
  const std::string remedy = fmt::format("Write a number and its unit: {}", rate_units);
  if (!number) refuse("a rate", text, "it does not begin with a number", remedy);
  if (*number < 0) refuse("a rate", text, "it is below 0", remedy);
  if (rest.empty()) refuse("a rate", text, "its unit is missing", remedy);

  std::string_view unit = rest;
  double factor = 1;
  constexpr std::string_view prefixes = "kMG";
  std::size_t power = unit.front() == 'K' ? 0 : prefixes.find(unit.front());
  if (power != std::string_view::npos) {
    unit.remove_prefix(1);
    const bool binary = unit.starts_with('i');
    if (binary) unit.remove_prefix(1);
    for (std::size_t i = 0; i <= power; ++i) factor *= binary ? 1024 : 1000;
  }
  if (unit == "b/s" || unit == "bit/s" || unit == "bps") return {*number * factor, false};
  if (unit == "B/s") return {*number * factor * 8, false};
  if (unit == "/s" || unit == "pps") return {*number * factor, true};
  refuse("a rate", text, fmt::format("'{}' is no unit of one", rest), remedy);
}

}  // namespace pollen::bw
