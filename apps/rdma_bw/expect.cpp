#include "expect.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cmath>

#include "numbers.hpp"
#include "pollen/base/error.hpp"

namespace pollen::bw {

namespace {

enum class Unit { bits, messages, percent, ns, pieces };

struct Kind {
  std::string_view name;
  Figure figure;
  Unit unit;
};
constexpr std::array kinds{
    Kind{"bw", Figure::bw, Unit::bits},
    Kind{"bw_min", Figure::bw_min, Unit::bits},
    Kind{"bw_max", Figure::bw_max, Unit::bits},
    Kind{"rate", Figure::rate, Unit::messages},
    Kind{"rate_min", Figure::rate_min, Unit::messages},
    Kind{"rate_max", Figure::rate_max, Unit::messages},
    Kind{"lost", Figure::lost, Unit::percent},
    Kind{"dropped", Figure::dropped, Unit::percent},
    Kind{"post", Figure::post, Unit::ns},
    Kind{"poll", Figure::poll, Unit::ns},
    Kind{"errors", Figure::errors, Unit::pieces},
};

struct Operator {
  std::string_view text;
  Expectation::Op op;
};
constexpr std::array operators{Operator{">=", Expectation::Op::at_least},
                               Operator{"<=", Expectation::Op::at_most},
                               Operator{">", Expectation::Op::above}, Operator{"<", Expectation::Op::below}};

[[noreturn]] void refuse(std::string_view text, std::string why, std::string remedy) {
  throw Error(
      EINVAL,
      {.attempted = fmt::format("expect '{}'", text), .why = std::move(why), .remedy = std::move(remedy)});
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::string figure_names() {
  std::string names;
  for (const Kind& kind : kinds) names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
  return names;
}

double read_bound(std::string_view text, std::string_view bound, const Kind& kind) {
  if (kind.unit == Unit::bits || kind.unit == Unit::messages) {
    Rate rate;
    try {
      rate = parse_rate(bound);
    } catch (const Error& error) {
      refuse(text, error.text().why, error.text().remedy);
    }
    if (rate.of_messages != (kind.unit == Unit::messages))
      refuse(text, fmt::format("{} is not a rate of {}", kind.name, rate.of_messages ? "messages" : "bytes"),
             kind.unit == Unit::bits ? "Use b/s or B/s for bw, as in bw>=10Gb/s"
                                     : "Use /s for rate, as in rate>=4M/s");
    return rate.per_second;
  }
  std::string_view rest = bound;
  const auto number = take_number(rest);
  const std::string_view unit = kind.unit == Unit::percent ? "%" : kind.unit == Unit::ns ? "ns" : "";
  if (!number) refuse(text, fmt::format("'{}' is no number", bound), "Write one behind the comparison");
  if (*number < 0) refuse(text, "the bound is below 0", "Choose another");
  if (rest != unit)
    refuse(text,
           rest.empty() ? "its unit is missing" : fmt::format("'{}' is not the unit of {}", rest, kind.name),
           unit.empty() ? fmt::format("{} is a plain number", kind.name)
                        : fmt::format("{} is in {}", kind.name, unit));
  return *number;
}

const Kind& kind_of(Figure figure) {
  for (const Kind& kind : kinds)
    if (kind.figure == figure) return kind;
  return kinds.front();
}

std::string in_words(double value, Unit unit) {
  switch (unit) {
    case Unit::bits:
      return fmt::format("{:.3f} Gb/s", value / 1e9);
    case Unit::messages:
      return fmt::format("{:.6f} M/s", value / 1e6);
    case Unit::percent:
      return fmt::format("{:.3f} %", value);
    case Unit::ns:
      return fmt::format("{:.2f} ns", value);
    case Unit::pieces:
      break;
  }
  return fmt::format("{:.0f}", value);
}

bool holds(double value, Expectation::Op op, double bound) {
  switch (op) {
    case Expectation::Op::at_least:
      return value >= bound;
    case Expectation::Op::above:
      return value > bound;
    case Expectation::Op::at_most:
      return value <= bound;
    case Expectation::Op::below:
      break;
  }
  return value < bound;
}

}  // namespace

Expectation parse_expectation(std::string_view text) {
  const std::size_t at = text.find_first_of("<>=");
  if (at == std::string_view::npos)
    refuse(text, "it has no comparison", "Write a figure, a comparison and a bound, as in bw>=10Gb/s");
  const std::string_view name = trimmed(text.substr(0, at));
  const std::string_view rest = text.substr(at);
  for (const Operator& one : operators) {
    if (!rest.starts_with(one.text)) continue;
    for (const Kind& kind : kinds)
      if (kind.name == name)
        return {.text = std::string(text),
                .figure = kind.figure,
                .op = one.op,
                .bound = read_bound(text, trimmed(rest.substr(one.text.size())), kind)};
    refuse(text, fmt::format("there is no figure '{}'", name),
           fmt::format("The figures are {}", figure_names()));
  }
  refuse(text, "its comparison is none of >=, >, <= and <", "Use one of them");
}

std::optional<double> Figures::get(Figure figure) const noexcept {
  switch (figure) {
    case Figure::bw:
      return bw_bits_per_s;
    case Figure::bw_min:
      return bw_min_bits_per_s;
    case Figure::bw_max:
      return bw_max_bits_per_s;
    case Figure::rate:
      return rate_per_s;
    case Figure::rate_min:
      return rate_min_per_s;
    case Figure::rate_max:
      return rate_max_per_s;
    case Figure::lost:
      return lost_percent;
    case Figure::dropped:
      return dropped_percent;
    case Figure::post:
      return post_ns;
    case Figure::poll:
      return poll_ns;
    case Figure::errors:
      break;
  }
  return errors;
}

Verdict judge(const Expectation& expectation, const Figures& figures) {
  const Kind& kind = kind_of(expectation.figure);
  Verdict verdict{.met = false, .value = figures.get(expectation.figure), .sentence = {}};
  if (!verdict.value) {
    verdict.sentence =
        fmt::format("{} is not met: this test has no figure '{}'", expectation.text, kind.name);
    return verdict;
  }
  const double value = *verdict.value;
  verdict.met = holds(value, expectation.op, expectation.bound);
  if (verdict.met) {
    verdict.sentence = fmt::format("{} is met: {}", expectation.text, in_words(value, kind.unit));
    return verdict;
  }
  const double off = std::abs(value - expectation.bound);
  const char* side = value < expectation.bound ? "below" : "above";
  verdict.sentence = fmt::format("{} is not met: {}, {} {}", expectation.text, in_words(value, kind.unit),
                                 in_words(off, kind.unit), side);
  if (expectation.bound > 0 && kind.unit != Unit::percent)
    verdict.sentence += fmt::format(" ({:.1f} %)", 100 * off / expectation.bound);
  return verdict;
}

}  // namespace pollen::bw
