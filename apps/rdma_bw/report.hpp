// Figures of a round, and the report in perftest's form: its columns to the letter, a row per lcore and
// one for all, then what posting and polling cost and what was lost to others.
//
// MiB are 2^20 bytes, Gb 10^9 bits. A rate counts messages that completed, from the first post to the last
// completion; in a test both ways it is the sum of both directions. Thread rules: one thread.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expect.hpp"
#include "pollen/probe/windows.hpp"
#include "side.hpp"

namespace pollen::bw {

struct Row {
  std::string label;  // "lcore 3", "all"
  std::uint64_t messages = 0;
  std::uint64_t duration_ns = 0;
  double bits_per_s = 0;
  double peak_bits_per_s = 0;  // of the fastest window
  double messages_per_s = 0;
  double busy_percent = 0;  // of the lcores of this side
};

struct RoundFigures {
  std::vector<Row> lcores;
  Row sum;
  std::uint64_t window_ns = 0;
  probe::RateSeries window_bytes;     // per second
  probe::RateSeries window_messages;  // per second
  Figures figures;                    // of the sum, for --expect
};

RoundFigures figures_of(const SideSetup& setup, const Round& round);

// About the run, for both reports.
struct RunInfo {
  std::string driver_why;
  std::string peer;         // address
  std::string peer_device;  // as the peer says
  std::string peer_release;
};

class TextReport {
 public:
  // out: standard output, or standard error where JSON goes to the former.
  TextReport(std::FILE* out, const Options& options) : out_(out), options_(options) {}

  void waiting(std::uint16_t port);
  void header(const SideSetup& setup, const RunInfo& info);
  void columns();
  void line_of_result();
  void round(const Round& round, const RoundFigures& figures);
  // Of one size in full; of several a table.
  void costs(const SideSetup& setup, const std::vector<std::pair<Round, RoundFigures>>& rounds);
  void notes(const std::vector<std::string>& notes);
  void verdict(const Verdict& verdict);
  void interval(std::uint64_t size, std::uint64_t messages, std::uint64_t ns);  // of --run_infinitely
  // A line that is written over by the next one, and goes with an empty text.
  void progress(std::string_view text);

 private:
  void line(std::string_view text);
  void received(const SideSetup& setup, const Round& round, const RoundFigures& figures);
  void measured(const Round& round, const RoundFigures& figures);
  void lcore(const Round& round, std::size_t index);
  void row(std::uint64_t size, const Row& row, bool labelled);

  std::FILE* out_;
  const Options& options_;
  bool progress_shown_ = false;
};

inline constexpr std::string_view release = "0.1.0";
inline constexpr const char* result_line =
    "---------------------------------------------------------------------------------------";

double in_report_unit(double bits_per_s, bool gbits) noexcept;

}  // namespace pollen::bw
