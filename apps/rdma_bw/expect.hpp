// Thresholds on a result: --expect 'bw>=10Gb/s'.
//
//   FIGURE OP NUMBER UNIT      OP: >= > <= <
//
//   bw, bw_min, bw_max         of the whole window, of the slowest and the fastest one; bits or bytes per
//   second rate, rate_min, rate_max   messages per second: /s, K/s, M/s, Mpps lost                       %:
//   the worst lcore's time taken by others dropped                    %: datagrams that were sent and not
//   received post, poll                 ns: the worst lcore's cost of a WR posted, of a CQE polled errors
//   messages that --data_validation found damaged; has no unit
//
// Units are always named. Thread rules: values. Errors: pollen::Error, EINVAL, for text that is none.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pollen::bw {

enum class Figure { bw, bw_min, bw_max, rate, rate_min, rate_max, lost, dropped, post, poll, errors };

struct Expectation {
  enum class Op { at_least, above, at_most, below };

  std::string text;  // as given
  Figure figure;
  Op op;
  double bound;  // bits/s, messages/s, percent, ns or pieces
};

Expectation parse_expectation(std::string_view text);

// By figure; absent where the test has none.
struct Figures {
  std::optional<double> bw_bits_per_s, bw_min_bits_per_s, bw_max_bits_per_s;
  std::optional<double> rate_per_s, rate_min_per_s, rate_max_per_s;
  std::optional<double> lost_percent, dropped_percent;
  std::optional<double> post_ns, poll_ns;
  std::optional<double> errors;

  std::optional<double> get(Figure figure) const noexcept;
};

struct Verdict {
  bool met = false;
  std::optional<double> value;  // in the bound's unit
  std::string sentence;         // "bw>=10Gb/s is not met: 7.91 Gb/s, 20.9 % below", or that it is met
};
Verdict judge(const Expectation& expectation, const Figures& figures);

}  // namespace pollen::bw
