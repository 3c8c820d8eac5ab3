#include "pollen/drivers/soft/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "pollen/base/error.hpp"

namespace pollen::soft {
namespace {

constexpr std::uint32_t max_reorder_packets = 1024;
constexpr std::uint64_t max_delay_ns = 10'000'000'000;

struct Unit {
  std::string_view name;
  std::uint64_t ns;
};
// Longest first: "ms" also ends in "s".
constexpr std::array<Unit, 4> units{{{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}}};

[[noreturn]] void refuse(std::string_view part, std::string why) {
  throw Error(EINVAL, {.attempted = fmt::format("understand the fault '{}'", part),
                       .why = std::move(why),
                       .remedy = "Give keys from loss=P, dup=P, reorder=P[:N], delay=[P:]TIME, corrupt=P and "
                                 "seed=N, for example loss=1e-3,delay=0.1:50us,seed=7"});
}

template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

double parse_probability(std::string_view part, std::string_view text) {
  const auto value = number<double>(text);
  if (!value || !(*value >= 0 && *value <= 1))
    refuse(part, fmt::format("'{}' is not a probability from 0 to 1", text));
  return std::abs(*value);  // of -0 too
}

std::uint64_t parse_delay_ns(std::string_view part, std::string_view text) {
  for (const Unit& unit : units) {
    if (!text.ends_with(unit.name)) continue;
    const auto value = number<double>(text.substr(0, text.size() - unit.name.size()));
    if (!value || !(*value >= 0)) break;
    const double ns = *value * static_cast<double>(unit.ns);
    if (!(ns <= static_cast<double>(max_delay_ns))) refuse(part, fmt::format("'{}' is more than 10 s", text));
    return static_cast<std::uint64_t>(std::llround(ns));
  }
  refuse(part, fmt::format("'{}' is not a time in ns, us, ms or s", text));
}

void parse_reorder(std::string_view part, std::string_view text, FaultConfig& config) {
  const std::size_t colon = text.find(':');
  config.reorder = parse_probability(part, text.substr(0, colon));
  if (colon == std::string_view::npos) return;
  const auto packets = number<std::uint32_t>(text.substr(colon + 1));
  if (!packets || *packets == 0 || *packets > max_reorder_packets)
    refuse(part, fmt::format("'{}' is not a number of packets from 1 to {}", text.substr(colon + 1),
                             max_reorder_packets));
  config.reorder_packets = *packets;
}

void parse_delay(std::string_view part, std::string_view text, FaultConfig& config) {
  const std::size_t colon = text.find(':');
  config.delay = colon == std::string_view::npos ? 1 : parse_probability(part, text.substr(0, colon));
  config.delay_ns = parse_delay_ns(part, colon == std::string_view::npos ? text : text.substr(colon + 1));
}

void parse_seed(std::string_view part, std::string_view text, FaultConfig& config) {
  const auto seed = number<std::uint64_t>(text);
  if (!seed) refuse(part, fmt::format("'{}' is not a number from 0 to 2^64 - 1", text));
  config.seed = *seed;
}

struct Key {
  std::string_view name;
  void (*parse)(std::string_view part, std::string_view text, FaultConfig& config);
};

constexpr std::array<Key, 6> keys{{
    {"loss", [](auto part, auto text, auto& config) { config.loss = parse_probability(part, text); }},
    {"dup", [](auto part, auto text, auto& config) { config.duplicate = parse_probability(part, text); }},
    {"reorder", parse_reorder},
    {"delay", parse_delay},
    {"corrupt", [](auto part, auto text, auto& config) { config.corrupt = parse_probability(part, text); }},
    {"seed", parse_seed},
}};

// A bijection of 64 bits in which each output bit depends on all input bits (SplitMix64's finalizer).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}
constexpr std::uint64_t golden = 0x9e3779b97f4a7c15;

// Which random number of a packet's is meant: each kind of fault has its own, so that switching one
// on or off leaves the others where they were.
enum Draw : std::uint64_t {
  draw_loss = 1,
  draw_duplicate,
  draw_reorder,
  draw_hold,
  draw_delay,
  draw_corrupt,
  draw_bit
};

class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t stream, std::uint64_t n) noexcept
      : state_(mix(mix(mix(seed + golden) + stream + golden) + n + golden)) {}

  bool happens(Draw draw, double probability) const noexcept {
    constexpr double scale = 0x1p-53;
    return static_cast<double>(number(draw) >> 11) * scale < probability;
  }
  std::uint64_t number(Draw draw) const noexcept { return mix(state_ + draw * golden); }

 private:
  std::uint64_t state_;
};

}  // namespace

FaultConfig parse_faults(std::string_view text) {
  FaultConfig config;
  std::array<bool, keys.size()> seen{};
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) refuse(part, "it is not key=value");
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&](const Key& k) { return k.name == part.substr(0, equals); });
    if (key == keys.end()) refuse(part, fmt::format("there is no key '{}'", part.substr(0, equals)));
    bool& twice = seen[static_cast<std::size_t>(key - keys.begin())];
    if (twice) refuse(part, fmt::format("'{}' is given twice", key->name));
    twice = true;
    key->parse(part, part.substr(equals + 1), config);
    if (comma == std::string_view::npos) return config;
    text.remove_prefix(comma + 1);
  }
}

std::string to_string(const FaultConfig& config) {
  if (!config.any()) return "none";
  std::string text;
  if (config.loss > 0) text += fmt::format("loss={},", config.loss);
  if (config.duplicate > 0) text += fmt::format("dup={},", config.duplicate);
  if (config.reorder > 0) text += fmt::format("reorder={}:{},", config.reorder, config.reorder_packets);
  if (config.delay > 0 && config.delay_ns > 0)
    text += fmt::format("delay={}:{}ns,", config.delay, config.delay_ns);
  if (config.corrupt > 0) text += fmt::format("corrupt={},", config.corrupt);
  return text + fmt::format("seed={}", config.seed);
}

Decision FaultModel::decide(std::uint64_t stream, std::uint64_t n) const noexcept {
  const Draws draws(config_.seed, stream, n);
  if (draws.happens(draw_loss, config_.loss)) return {.drop = true};
  Decision decision{.duplicate = draws.happens(draw_duplicate, config_.duplicate)};
  if (draws.happens(draw_corrupt, config_.corrupt))
    decision.corrupt_bit = static_cast<std::uint32_t>(draws.number(draw_bit));
  if (draws.happens(draw_reorder, config_.reorder))
    decision.hold_packets = static_cast<std::uint32_t>(1 + draws.number(draw_hold) % config_.reorder_packets);
  if (draws.happens(draw_delay, config_.delay)) decision.delay_ns = config_.delay_ns;
  return decision;
}

void flip_bit(std::span<std::byte> bytes, std::uint32_t bit) noexcept {
  if (bytes.empty()) return;
  const std::uint64_t at = bit % (std::uint64_t{bytes.size()} * 8);
  bytes[at / 8] ^= std::byte{static_cast<std::uint8_t>(1u << at % 8)};
}

void FaultStatistics::count(const Decision& decision) noexcept {
  ++packets;
  dropped += decision.drop;
  duplicated += decision.duplicate;
  corrupted += decision.corrupt_bit.has_value();
  reordered += decision.hold_packets > 0;
  delayed += decision.delay_ns > 0;
}

FaultStatistics& FaultStatistics::operator+=(const FaultStatistics& other) noexcept {
  packets += other.packets;
  dropped += other.dropped;
  duplicated += other.duplicated;
  corrupted += other.corrupted;
  reordered += other.reordered;
  delayed += other.delayed;
  return *this;
}

}  // namespace pollen::soft
