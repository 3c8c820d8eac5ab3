#include "json_report.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "pollen/base/error.hpp"
#include "pollen/net/fd.hpp"

namespace pollen::bw {

using nlohmann::json;

namespace {

const char* length_name(LengthKind kind) {
  switch (kind) {
    case LengthKind::iterations:
      return "iterations";
    case LengthKind::seconds:
      return "seconds";
    case LengthKind::until_stopped:
      break;
  }
  return "until_stopped";
}

json one_or_all(const json& array) { return array.size() == 1 ? array[0] : array; }

json windows_of(const Round& round, const RoundFigures& figures) {
  const auto series = [](const probe::RateSeries& from) {
    return json{{"min", from.min}, {"mean", from.mean}, {"max", from.max}};
  };
  return {{"MsgSize", round.size},
          {"count", figures.window_bytes.windows},
          {"width_ns", figures.window_ns},
          {"bytes_per_s", series(figures.window_bytes)},
          {"messages_per_s", series(figures.window_messages)}};
}

}  // namespace

JsonReport::JsonReport(const SideSetup& setup, const RunInfo& info, const Options& options)
    : gbits_(options.gbits) {
  const TestParameters& test = setup.test;
  const driver::DeviceInfo& device = setup.device.info();
  json lcores = json::array();
  for (const unsigned cpu : setup.plan.cpus()) lcores.push_back(cpu);
  document_["test_info"] = {
      {"test", fmt::format("{} {}BW Test", title(test.op), test.both_ways ? "Bidirectional " : "")},
      {"op", name(test.op)},
      {"role", net::name(setup.role)},
      {"release", release},
      {"Device", device.name},
      {"driver", device.driver},
      {"device_description", device.description},
      {"driver_choice", info.driver_why},
      {"peer", info.peer},
      {"peer_device", info.peer_device},
      {"peer_release", info.peer_release},
      {"Connection_type", test.is_ud() ? "UD" : "RC"},
      {"Mtu", setup.mtu_bytes},
      {"GID_index", setup.gid.index},
      {"GID", driver::to_string(setup.gid.gid)},
      {"lcores", lcores},
      {"Number_of_qps", test.qps},
      {"bidirectional", test.both_ways},
      {"data_validation", test.validate},
      {"length", {{"kind", length_name(test.length)}, {"amount", test.amount}}},
      {"TX_depth", test.tx_depth},
      {"RX_depth", test.rx_depth},
      {"post_list", test.post_list},
      {"CQ_Moderation", test.signal_every},
      {"Inline_size", test.inline_bytes},
      {"rate_limit", options.limit > 0 ? json(options.limit) : json(nullptr)},
      {"rate_limit_unit", options.limit_is_messages ? "messages/s" : "b/s"},
      {"idle", lcore::to_string(options.lcores.idle.value_or(lcore::default_idle(setup.plan)))},
      {"interrupted", false}};
  const char* unit = gbits_ ? "Gb/s" : "MiB/s";
  document_["units"] = {{"MsgSize", "bytes"}, {"n_iterations", "messages"}, {"BW_peak", unit},
                        {"BW_average", unit}, {"MsgRate", "Mpps"},          {"CPU_Util", "%"},
                        {"duration_ns", "ns"}};
  document_["lcores"] = json::array();
  document_["peer_lcores"] = json::array();
  document_["expectations"] = json::array();
  document_["notes"] = json::array();
}

void JsonReport::round(const SideSetup& setup, const Round& round, const RoundFigures& figures) {
  const auto result = [&](const Row& row) {
    return json{{"MsgSize", round.size},
                {"n_iterations", row.messages},
                {"BW_peak", in_report_unit(row.peak_bits_per_s, gbits_)},
                {"BW_average", in_report_unit(row.bits_per_s, gbits_)},
                {"MsgRate", row.messages_per_s / 1e6},
                {"CPU_Util", row.busy_percent},
                {"duration_ns", row.duration_ns}};
  };
  json sum = result(figures.sum);
  if (figures.figures.dropped_percent && setup.test.is_ud())
    sum["dropped_percent"] = *figures.figures.dropped_percent;
  results_.push_back(sum);
  windows_.push_back(windows_of(round, figures));

  const auto add = [&](json& to, const LcoreOutcome& one, const Row* row) {
    json lcore = row != nullptr ? result(*row) : json{{"MsgSize", round.size}};
    lcore["lcore"] = one.lcore;
    lcore["sent"] = one.sent;
    lcore["received"] = one.received;
    lcore["arena_pages"] = one.pages;
    lcore["probe"] = one.probe;
    if (setup.test.validate) {
      lcore["validation"] = {
          {"checked", one.checked}, {"damaged", one.damaged}, {"first_damage", one.first_damage}};
    }
    to.push_back(std::move(lcore));
  };
  for (std::size_t i = 0; i < round.mine.lcores.size(); ++i) {
    add(document_["lcores"], round.mine.lcores[i], &figures.lcores[i]);
    add(document_["peer_lcores"], round.theirs.lcores[i], nullptr);
  }
  for (const std::string& note : round.mine.notes) {
    json& notes = document_["notes"];
    if (std::find(notes.begin(), notes.end(), json(note)) == notes.end()) notes.push_back(note);
  }
}

void JsonReport::verdict(std::uint64_t size, const Expectation& expectation, const Verdict& verdict) {
  document_["expectations"].push_back({{"MsgSize", size},
                                       {"expected", expectation.text},
                                       {"met", verdict.met},
                                       {"value", verdict.value ? json(*verdict.value) : json(nullptr)},
                                       {"sentence", verdict.sentence}});
}

std::string JsonReport::text() const {
  json document = document_;
  document["results"] = one_or_all(results_);
  document["windows"] = one_or_all(windows_);
  return document.dump(2) + "\n";
}

JsonFile::JsonFile(std::string path) : path_(std::move(path)) {
  if (path_ == "-") return;
  struct stat info {};
  const bool there = ::stat(path_.c_str(), &info) == 0;
  special_ = there && !S_ISREG(info.st_mode);
  const auto directory = std::filesystem::absolute(path_).parent_path();
  if (there && S_ISDIR(info.st_mode)) fail(EISDIR);
  if (::access(special_ ? path_.c_str() : directory.c_str(), W_OK) != 0) fail(errno);
}

void JsonFile::write(const std::string& text) const {
  if (path_ == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      fail(errno);
    return;
  }
  const std::string file = special_ ? path_ : fmt::format("{}.{}", path_, ::getpid());
  const net::Fd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC | (special_ ? 0 : O_CREAT | O_TRUNC), 0644));
  if (!fd) fail(errno);
  int errnum = 0;
  for (std::size_t done = 0; done < text.size() && errnum == 0;) {
    const ssize_t part = ::write(fd.get(), text.data() + done, text.size() - done);
    if (part >= 0)
      done += static_cast<std::size_t>(part);
    else if (errno != EINTR)
      errnum = errno;
  }
  if (!special_ && errnum == 0 && ::rename(file.c_str(), path_.c_str()) != 0) errnum = errno;
  if (errnum == 0) return;
  if (!special_) ::unlink(file.c_str());
  fail(errnum);
}

void JsonFile::fail(int errnum) const {
  throw Error(errnum, {.attempted = "write the JSON report",
                       .on = path_ == "-" ? "standard output" : path_,
                       .why = {},
                       .remedy = "Name another file with --out_json_file"});
}

}  // namespace pollen::bw
