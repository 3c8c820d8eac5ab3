#include "outcome.hpp"

#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "pollen/base/error.hpp"
#include "pollen/net/wire.hpp"

namespace pollen::bw {

using nlohmann::json;

namespace {

[[noreturn]] void refuse(std::string why) {
  throw Error(EBADMSG, {.attempted = "read the peer's results",
                        .why = std::move(why),
                        .remedy = "Use the same release on both sides"});
}

std::string plain(std::string text) {
  if (text.size() > 1024 || !net::is_plain_text(text)) refuse("a text in them is too long or not plain");
  return text;
}

LcoreOutcome read_lcore(const json& from) {
  LcoreOutcome out;
  out.lcore = from.at("lcore").get<unsigned>();
  out.sent = from.at("sent").get<std::uint64_t>();
  out.duration_ns = from.at("duration_ns").get<std::uint64_t>();
  out.received = from.at("received").get<std::uint64_t>();
  out.checked = from.at("checked").get<std::uint64_t>();
  out.damaged = from.at("damaged").get<std::uint64_t>();
  out.first_damage = plain(from.at("first_damage").get<std::string>());
  out.pages = plain(from.at("pages").get<std::string>());
  out.windows.width_ns = from.at("window_ns").get<std::uint64_t>();
  out.windows.messages = from.at("windows").get<std::vector<std::uint64_t>>();
  const std::uint64_t width = out.windows.width_ns;
  const std::uint64_t times = width / WindowLog::first_width_ns;
  if (out.windows.messages.size() > WindowLog::capacity || !std::has_single_bit(times) ||
      width % WindowLog::first_width_ns != 0)
    refuse("their windows make no sense");
  out.probe = from.at("probe");
  return out;
}

}  // namespace

std::vector<std::byte> encode(const SideOutcome& outcome) {
  json lcores = json::array();
  for (const LcoreOutcome& one : outcome.lcores)
    lcores.push_back({{"lcore", one.lcore},
                      {"sent", one.sent},
                      {"duration_ns", one.duration_ns},
                      {"received", one.received},
                      {"checked", one.checked},
                      {"damaged", one.damaged},
                      {"first_damage", one.first_damage},
                      {"pages", one.pages},
                      {"window_ns", one.windows.width_ns},
                      {"windows", one.windows.messages},
                      {"probe", one.probe}});
  const std::string text = json{{"interrupted", outcome.interrupted}, {"lcores", lcores}}.dump();
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

SideOutcome decode(std::span<const std::byte> bytes, std::size_t lcores) {
  const auto* begin = reinterpret_cast<const char*>(bytes.data());
  SideOutcome out;
  try {
    const json all = json::parse(begin, begin + bytes.size());
    out.interrupted = all.at("interrupted").get<bool>();
    for (const json& one : all.at("lcores")) out.lcores.push_back(read_lcore(one));
  } catch (const json::exception& error) {
    refuse(error.what());
  }
  if (out.lcores.size() != lcores)
    refuse(fmt::format("they are of {} lcores, not of {}", out.lcores.size(), lcores));
  return out;
}

}  // namespace pollen::bw
