#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "pollen/probe/report.hpp"

namespace pollen::bw {

namespace {

std::string length_text(const TestParameters& test) {
  switch (test.length) {
    case LengthKind::iterations:
      return fmt::format("{} messages per QP", test.amount);
    case LengthKind::seconds:
      return fmt::format("{} s", test.amount);
    case LengthKind::until_stopped:
      break;
  }
  return "until stopped";
}

std::string time_text(std::uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1'000'000) return fmt::format("{:.1f} us", value / 1e3);
  if (ns < 1'000'000'000) return fmt::format("{:.3f} ms", value / 1e6);
  return fmt::format("{:.3f} s", value / 1e9);
}

std::string per_message(std::optional<std::uint64_t> count, std::uint64_t messages, const char* what) {
  if (!count || messages == 0) return {};
  return fmt::format(" {:.1f} {}", static_cast<double>(*count) / static_cast<double>(messages), what);
}

}  // namespace

double in_report_unit(double bits_per_s, bool gbits) noexcept {
  return gbits ? bits_per_s / 1e9 : bits_per_s / 8 / 1048576;
}

void TextReport::line(std::string_view text) {
  progress({});
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fputc('\n', out_);
  std::fflush(out_);
}

void TextReport::progress(std::string_view text) {
  if (text.empty() && !progress_shown_) return;
  std::fputs(fmt::format("\r{}\x1b[K", text).c_str(), out_);
  std::fflush(out_);
  progress_shown_ = !text.empty();
}

void TextReport::waiting(std::uint16_t port) {
  const std::string stars(36, '*');
  line(stars);
  line("* Waiting for client to connect... *");
  line(stars);
  line(fmt::format(" TCP port       : {}", port));
}

void TextReport::header(const SideSetup& setup, const RunInfo& info) {
  const driver::DeviceInfo& device = setup.device.info();
  const TestParameters& test = setup.test;
  line(result_line);
  line(fmt::format("                    {} {}BW Test", title(test.op),
                   test.both_ways ? "Bidirectional " : ""));
  line(fmt::format(" Device         : {} ({})", device.name, device.description));
  line(fmt::format(" Driver         : {}", info.driver_why));
  line(fmt::format(" Peer           : {}, {}, Pollen {}", info.peer, info.peer_device, info.peer_release));
  line(fmt::format(" Connection type: {}   MTU: {} bytes   GID: index {} {}", test.is_ud() ? "UD" : "RC",
                   setup.mtu_bytes, setup.gid.index, driver::to_string(setup.gid.gid)));
  line(fmt::format(" Lcores         : {}   QPs: {} on each   Idle: {}", setup.plan.cpus().list(), test.qps,
                   lcore::to_string(setup.options.lcores.idle.value_or(lcore::default_idle(setup.plan)))));
  line(fmt::format(
      " TX depth       : {}   RX depth: {}   Post list: {}   CQ moderation: {}   Inline: {} bytes",
      test.tx_depth, test.rx_depth, test.post_list == 0 ? "as there is room" : std::to_string(test.post_list),
      test.signal_every == 0 ? "by size" : std::to_string(signal_every(test, 1)), test.inline_bytes));
  line(fmt::format(" Length         : {}{}", length_text(test),
                   test.validate ? "   Data validation: on" : ""));
  if (setup.options.limit > 0)
    line(fmt::format(" Rate limit     : {}",
                     setup.options.limit_is_messages
                         ? fmt::format("{:.6g} M messages/s", setup.options.limit / 1e6)
                         : fmt::format("{:.6g} Gb/s", setup.options.limit / 1e9)));
  line(result_line);
}

void TextReport::columns() {
  const char* unit = options_.gbits ? "Gb/sec" : "MiB/sec";
  line(fmt::format(" #bytes     #iterations    BW peak[{}]    BW average[{}]   MsgRate[Mpps]{}", unit, unit,
                   options_.cpu_util ? "    CPU_Util[%]" : ""));
}

void TextReport::line_of_result() { line(result_line); }

void TextReport::row(std::uint64_t size, const Row& row, bool labelled) {
  std::string text = fmt::format(" {:<7}    {:<10}       {:<7.2f}            {:<7.2f}\t\t   {:<7.6f}", size,
                                 row.messages, in_report_unit(row.peak_bits_per_s, options_.gbits),
                                 in_report_unit(row.bits_per_s, options_.gbits), row.messages_per_s / 1e6);
  if (options_.cpu_util) text += fmt::format("\t    {:<3.2f}", row.busy_percent);
  if (labelled) text += fmt::format("   {}", row.label);
  line(text);
}

void TextReport::interval(std::uint64_t size, std::uint64_t messages, std::uint64_t ns) {
  Row one{.label = {}, .messages = messages, .duration_ns = ns};
  one.messages_per_s = ns == 0 ? 0 : static_cast<double>(messages) * 1e9 / static_cast<double>(ns);
  one.bits_per_s = one.messages_per_s * 8 * static_cast<double>(size);
  std::string text =
      fmt::format(" {:<7}    {:<10}       {:<7.2f}            {:<7.2f}\t\t   {:<7.6f}", size, messages, 0.0,
                  in_report_unit(one.bits_per_s, options_.gbits), one.messages_per_s / 1e6);
  line(text);
}

void TextReport::round(const Round& round, const RoundFigures& figures) {
  const bool several = figures.lcores.size() > 1;
  if (several)
    for (const Row& one : figures.lcores) row(round.size, one, true);
  row(round.size, figures.sum, several);
}

void TextReport::measured(const Round& round, const RoundFigures& figures) {
  const auto rate = [&](double bytes_per_s) { return in_report_unit(8 * bytes_per_s, options_.gbits); };
  line(fmt::format(" Measured       : {} messages of {} bytes in {}", figures.sum.messages, round.size,
                   time_text(figures.sum.duration_ns)));
  if (figures.window_bytes.windows == 0) return line(" Windows        : none, the test took less than 1 ms");
  line(fmt::format(" Windows        : {} of {}: min {:.2f}, mean {:.2f}, max {:.2f} {}",
                   figures.window_bytes.windows, time_text(figures.window_ns), rate(figures.window_bytes.min),
                   rate(figures.window_bytes.mean), rate(figures.window_bytes.max),
                   options_.gbits ? "Gb/sec" : "MiB/sec"));
}

// What the receivers say: how many came, and in what state.
void TextReport::received(const SideSetup& setup, const Round& round, const RoundFigures& figures) {
  std::uint64_t sent = 0, received = 0, checked = 0, damaged = 0;
  std::string first;
  for (const SideOutcome* side : {&round.mine, &round.theirs})
    for (const LcoreOutcome& one : side->lcores) {
      sent += one.sent;
      received += one.received;
      checked += one.checked;
      damaged += one.damaged;
      if (first.empty() && !one.first_damage.empty()) first = ", first: " + one.first_damage;
    }
  if (setup.test.is_ud())
    line(fmt::format(" Received       : {} of {} datagrams of {} bytes ({:.3f} % dropped)", received, sent,
                     round.size, figures.figures.dropped_percent.value_or(0)));
  if (setup.test.validate)
    line(fmt::format(" Data validation: {} messages of {} bytes checked, {} damaged{}", checked, round.size,
                     damaged, first));
}

void TextReport::lcore(const Round& round, std::size_t index) {
  const probe::LcoreReport& report = round.mine.reports[index];
  const std::uint64_t messages = round.mine.lcores[index].sent + round.mine.lcores[index].received;
  const std::string counted = per_message(report.hardware.instructions, messages, "instructions") +
                              per_message(report.hardware.cycles, messages, "cycles") +
                              per_message(report.hardware.cache_misses, messages, "cache misses");
  line(fmt::format(" lcore {}: {}; hardware counters: {}", report.lcore,
                   report.preemption ? report.preemption->explain() : "preemption is not watched",
                   counted.empty() ? report.hardware_status : "per message" + counted));
}

void TextReport::costs(const SideSetup& setup, const std::vector<std::pair<Round, RoundFigures>>& rounds) {
  for (const auto& [round, figures] : rounds) {
    if (rounds.size() == 1) measured(round, figures);
    received(setup, round, figures);
  }
  const bool several = rounds.size() > 1;
  line((several ? "  #bytes " : "") + probe::table_header());
  for (const auto& [round, figures] : rounds)
    for (const probe::LcoreReport& report : round.mine.reports)
      line((several ? fmt::format("{:>8} ", round.size) : "") + probe::table_row(report));
  if (several) return;
  for (const auto& [round, figures] : rounds)
    for (std::size_t i = 0; i < round.mine.reports.size(); ++i) lcore(round, i);
}

void TextReport::notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) line(fmt::format(" Note           : {}", note));
}

void TextReport::verdict(const Verdict& verdict) {
  line(fmt::format(" Expected       : {}", verdict.sentence));
}

}  // namespace pollen::bw
