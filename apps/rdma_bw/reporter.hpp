// What a side says of its run, from the header to the exit code: the table and what stands behind it, the
// progress line, JSON, expectations.
//
// Thread rules: one thread. Errors: pollen::Error where the JSON report can't be written.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "json_report.hpp"
#include "report.hpp"
#include "side.hpp"

namespace pollen::bw {

class Reporter {
 public:
  enum class Voice : std::uint8_t { loud, silent };

  Reporter(const Options& options, Voice voice);

  TextReport& text() { return text_; }

  void begin(const SideSetup& setup, const RunInfo& info);
  // While a round runs: a row per interval of --run_infinitely; else, on a terminal, a line per second.
  void look(const SideSetup& setup, const Progress& progress);
  void round(const SideSetup& setup, Round round);
  bool interrupted() const { return interrupted_; }
  // Returns the exit code.
  int end(const SideSetup& setup);

 private:
  using Clock = std::chrono::steady_clock;

  bool is_silent() const { return voice_ == Voice::silent; }
  std::vector<std::string> notes() const;
  void mark(Clock::time_point now, std::uint64_t messages);

  const Options& options_;
  Voice voice_;
  TextReport text_;
  bool terminal_;
  std::optional<JsonFile> file_;
  std::optional<JsonReport> json_;
  std::vector<std::pair<Round, RoundFigures>> rounds_;
  bool interrupted_ = false;
  std::optional<Clock::time_point> since_;
  Clock::time_point begun_;
  std::uint64_t counted_ = 0;
};

}  // namespace pollen::bw
