#include <fmt/format.h>

#include <algorithm>

#include "report.hpp"

namespace pollen::bw {

namespace {

constexpr std::size_t most_windows = 100;

double per_second(std::uint64_t amount, std::uint64_t ns) noexcept {
  return ns == 0 ? 0 : static_cast<double>(amount) * 1e9 / static_cast<double>(ns);
}

// Windows in which all of them were at work, summed.
WindowSeries summed(std::vector<WindowSeries> all) {
  WindowSeries sum{.width_ns = WindowLog::first_width_ns, .messages = {}};
  if (all.empty()) return sum;
  for (const WindowSeries& one : all) sum.width_ns = std::max(sum.width_ns, one.width_ns);
  std::size_t count = WindowLog::capacity;
  for (WindowSeries& one : all) {
    one.widen(sum.width_ns);
    count = std::min(count, one.messages.size());
  }
  sum.messages.assign(count, 0);
  for (const WindowSeries& one : all)
    for (std::size_t i = 0; i < count; ++i) sum.messages[i] += one.messages[i];
  sum.widen_to_at_most(most_windows);
  return sum;
}

probe::RateWindows rates_of(const WindowSeries& windows, std::uint64_t size) {
  probe::RateWindows rates(windows.width_ns);
  rates.start(0);
  for (std::size_t i = 0; i < windows.messages.size(); ++i)
    rates.add(i * windows.width_ns, windows.messages[i] * size, windows.messages[i]);
  rates.advance(windows.messages.size() * windows.width_ns);
  return rates;
}

// Lcores that did the same work, one of each direction or all of one.
Row make_row(std::string label, std::uint64_t size,
             const std::vector<std::vector<const LcoreOutcome*>>& directions) {
  Row row{.label = std::move(label)};
  std::vector<WindowSeries> windows;
  for (const auto& direction : directions) {
    std::uint64_t messages = 0, duration_ns = 0;
    for (const LcoreOutcome* one : direction) {
      messages += one->sent;
      duration_ns = std::max(duration_ns, one->duration_ns);
      windows.push_back(one->windows);
    }
    row.messages += messages;
    row.duration_ns = std::max(row.duration_ns, duration_ns);
    row.messages_per_s += per_second(messages, duration_ns);
  }
  row.bits_per_s = row.messages_per_s * static_cast<double>(size) * 8;
  const auto rates = rates_of(summed(std::move(windows)), size);
  row.peak_bits_per_s = std::max(row.bits_per_s, rates.bytes_per_second().max * 8);
  return row;
}

double busy_percent(const probe::LcoreReport& report) {
  if (report.counters.total_cycles == 0) return 0;
  return 100 *
         (1 - report.counters.share(probe::Phase::poll_empty) - report.counters.share(probe::Phase::idle));
}

void add_costs(const Round& round, Figures& figures) {
  for (const probe::LcoreReport& report : round.mine.reports) {
    const auto worst = [](std::optional<double>& figure, double value) {
      figure = std::max(figure.value_or(0), value);
    };
    if (report.counters.post_sample_wrs != 0) worst(figures.post_ns, report.counters.ns_per_wr());
    if (report.counters.poll_sample_cqes != 0) worst(figures.poll_ns, report.counters.ns_per_cqe());
    if (report.preemption && report.preemption->watched_ns != 0)
      worst(figures.lost_percent, 100 * static_cast<double>(report.preemption->lost_ns) /
                                      static_cast<double>(report.preemption->watched_ns));
  }
}

}  // namespace

RoundFigures figures_of(const SideSetup& setup, const Round& round) {
  RoundFigures out;
  std::vector<const SideOutcome*> senders;
  if (setup.activity().active) senders.push_back(&round.mine);
  if (setup.activity().passive) senders.push_back(&round.theirs);

  std::vector<std::vector<const LcoreOutcome*>> all(senders.size());
  std::vector<WindowSeries> windows;
  for (std::size_t i = 0; i < round.mine.lcores.size(); ++i) {
    std::vector<std::vector<const LcoreOutcome*>> pair;
    for (std::size_t side = 0; side < senders.size(); ++side) {
      const LcoreOutcome* one = &senders[side]->lcores[i];
      pair.push_back({one});
      all[side].push_back(one);
      windows.push_back(one->windows);
    }
    Row& row = out.lcores.emplace_back(
        make_row(fmt::format("lcore {}", round.mine.lcores[i].lcore), round.size, pair));
    row.busy_percent = busy_percent(round.mine.reports[i]);
    out.sum.busy_percent += row.busy_percent / static_cast<double>(round.mine.lcores.size());
  }
  const double busy = out.sum.busy_percent;
  out.sum = make_row("all", round.size, all);
  out.sum.busy_percent = busy;

  const WindowSeries sum = summed(std::move(windows));
  const auto rates = rates_of(sum, round.size);
  out.window_ns = sum.width_ns;
  out.window_bytes = rates.bytes_per_second();
  out.window_messages = rates.messages_per_second();

  Figures& figures = out.figures;
  figures.bw_bits_per_s = out.sum.bits_per_s;
  figures.rate_per_s = out.sum.messages_per_s;
  if (out.window_bytes.windows != 0) {
    figures.bw_min_bits_per_s = out.window_bytes.min * 8;
    figures.bw_max_bits_per_s = out.window_bytes.max * 8;
    figures.rate_min_per_s = out.window_messages.min;
    figures.rate_max_per_s = out.window_messages.max;
  }
  add_costs(round, figures);
  std::uint64_t sent = 0, received = 0, damaged = 0;
  for (const SideOutcome* side : {&round.mine, &round.theirs})
    for (const LcoreOutcome& one : side->lcores) {
      sent += one.sent;
      received += one.received;
      damaged += one.damaged;
    }
  if (is_received(setup.test.op) && sent != 0)
    figures.dropped_percent =
        100 * static_cast<double>(sent - std::min(sent, received)) / static_cast<double>(sent);
  if (setup.test.validate) figures.errors = static_cast<double>(damaged);
  return out;
}

}  // namespace pollen::bw
