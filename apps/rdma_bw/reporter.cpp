#include "reporter.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "session.hpp"

namespace pollen::bw {

using std::chrono::seconds;

Reporter::Reporter(const Options& options, Voice voice)
    : options_(options),
      voice_(voice),
      text_(options.json_path == "-" ? stderr : stdout, options),
      terminal_(::isatty(::fileno(stdout)) == 1 && options.json_path != "-") {
  if (options.json_path && !is_silent()) file_.emplace(*options.json_path);
}

void Reporter::begin(const SideSetup& setup, const RunInfo& info) {
  if (is_silent()) return;
  text_.header(setup, info);
  text_.columns();
  json_.emplace(setup, info, options_);
}

void Reporter::mark(Clock::time_point now, std::uint64_t messages) {
  since_ = now;
  counted_ = messages;
}

void Reporter::look(const SideSetup& setup, const Progress& progress) {
  if (is_silent() || !progress.running) return;
  const auto now = Clock::now();
  const std::uint64_t messages = setup.activity().active ? progress.sent : progress.received;
  if (!since_) {
    begun_ = now;
    return mark(now, messages);
  }
  const auto passed = now - *since_;
  const auto ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(passed).count());
  const bool rows = setup.test.length == LengthKind::until_stopped && setup.activity().active;
  if (rows && passed >= seconds(options_.interval_s)) {
    text_.interval(progress.size, messages - counted_, ns);
    return mark(now, messages);
  }
  if (rows || !terminal_ || passed < seconds(1)) return;
  const double per_s = static_cast<double>(messages - counted_) * 1e9 / static_cast<double>(ns);
  const double bits = per_s * 8 * static_cast<double>(progress.size);
  text_.progress(fmt::format(" {:.0f} s  {} bytes  {:.2f} {}  {:.6f} Mpps",
                             std::chrono::duration<double>(now - begun_).count(), progress.size,
                             in_report_unit(bits, options_.gbits), options_.gbits ? "Gb/sec" : "MiB/sec",
                             per_s / 1e6));
  mark(now, messages);
}

void Reporter::round(const SideSetup& setup, Round round) {
  since_.reset();
  interrupted_ = interrupted_ || round.mine.interrupted || round.theirs.interrupted;
  if (is_silent()) return;
  RoundFigures figures = figures_of(setup, round);
  text_.round(round, figures);
  json_->round(setup, round, figures);
  rounds_.emplace_back(std::move(round), std::move(figures));
}

std::vector<std::string> Reporter::notes() const {
  std::vector<std::string> all;
  for (const auto& [round, figures] : rounds_)
    for (const std::string& note : round.mine.notes)
      if (std::ranges::find(all, note) == all.end()) all.push_back(note);
  return all;
}

int Reporter::end(const SideSetup& setup) {
  if (is_silent()) return exit_well;
  int code = exit_well;
  text_.line_of_result();
  text_.costs(setup, rounds_);
  for (const auto& [round, figures] : rounds_)
    if (figures.figures.errors.value_or(0) > 0) code = exit_damaged;
  text_.notes(notes());
  for (const auto& [round, figures] : rounds_)
    for (const Expectation& expectation : options_.expectations) {
      const Verdict verdict = judge(expectation, figures.figures);
      text_.verdict(verdict);
      json_->verdict(round.size, expectation, verdict);
      if (!verdict.met && code == exit_well) code = exit_not_met;
    }
  if (interrupted_) json_->interrupted();
  if (file_) file_->write(json_->text());
  return code;
}

}  // namespace pollen::bw
