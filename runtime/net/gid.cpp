#include "pollen/net/gid.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "pollen/base/error.hpp"

namespace pollen::net {

namespace {

constexpr std::array<std::string_view, 5> kind_names{"rocev2-ipv4", "rocev2-ipv6", "rocev2-link-local",
                                                     "rocev1", "infiniband"};

[[noreturn]] void reject(const driver::PortInfo& port, int errnum, std::string why, std::string_view advice) {
  const std::string table = gid_table(port);
  throw Error(
      errnum,
      {.attempted = "choose a GID",
       .why = std::move(why),
       .remedy = table.empty() ? "The port has none: give its network interface an address and set it up"
                               : fmt::format("{}; the port has {}", advice, table)});
}

std::vector<driver::GidEntry> usable(const driver::PortInfo& port) {
  std::vector<driver::GidEntry> entries;
  std::ranges::copy_if(port.gids, std::back_inserter(entries),
                       [](const auto& e) { return !e.gid.is_zero(); });
  return entries;
}

driver::GidEntry at_index(const driver::PortInfo& port, std::uint32_t index) {
  const auto entries = usable(port);
  const auto found = std::ranges::find(entries, index, &driver::GidEntry::index);
  if (found == entries.end())
    reject(port, EINVAL, fmt::format("there is none at index {}", index), "Choose another index, or none");
  return *found;
}

}  // namespace

std::string_view name(GidKind kind) noexcept { return kind_names[static_cast<std::size_t>(kind)]; }

std::optional<GidKind> gid_kind_named(std::string_view name) noexcept {
  const auto at = std::ranges::find(kind_names, name);
  if (at == kind_names.end()) return std::nullopt;
  return static_cast<GidKind>(at - kind_names.begin());
}

GidKind kind_of(const driver::GidEntry& entry) noexcept {
  if (entry.type == driver::GidType::infiniband) return GidKind::infiniband;
  if (entry.type == driver::GidType::roce_v1) return GidKind::roce_v1;
  if (entry.gid.is_ipv4_mapped()) {
    const bool is_link_local = entry.gid.bytes[12] == 169 && entry.gid.bytes[13] == 254;
    return is_link_local ? GidKind::roce_v2_link_local : GidKind::roce_v2_ipv4;
  }
  return entry.gid.is_link_local() ? GidKind::roce_v2_link_local : GidKind::roce_v2_ipv6;
}

std::vector<GidKind> gid_kinds(const driver::PortInfo& port, std::optional<std::uint32_t> index) {
  if (index) return {kind_of(at_index(port, *index))};
  std::vector<GidKind> kinds;
  for (const driver::GidEntry& entry : usable(port)) kinds.push_back(kind_of(entry));
  std::ranges::sort(kinds);
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  return kinds;
}

std::string joined(const std::vector<GidKind>& kinds) {
  std::vector<std::string_view> names;
  for (const GidKind kind : kinds) names.push_back(name(kind));
  return fmt::format("{}", fmt::join(names, ","));
}

driver::GidEntry choose_gid(const driver::PortInfo& port, std::optional<std::uint32_t> index,
                            std::optional<GidKind> kind) {
  if (index) {
    const driver::GidEntry entry = at_index(port, *index);
    if (kind && kind_of(entry) != *kind)
      reject(port, EADDRNOTAVAIL,
             fmt::format("the one at index {} is {} and the peer's is {}", *index, name(kind_of(entry)),
                         name(*kind)),
             "Choose one of the same kind on both sides");
    return entry;
  }
  auto entries = usable(port);
  if (kind) std::erase_if(entries, [kind](const auto& entry) { return kind_of(entry) != *kind; });
  if (entries.empty())
    reject(port, EADDRNOTAVAIL, kind ? fmt::format("there is none of kind {}", name(*kind)) : "there is none",
           "Both sides need one of the same kind");
  return *std::ranges::min_element(entries, {},
                                   [](const auto& entry) { return std::pair(kind_of(entry), entry.index); });
}

std::string gid_table(const driver::PortInfo& port) {
  constexpr std::size_t shown = 16;
  std::vector<std::string> lines;
  const auto entries = usable(port);
  for (const driver::GidEntry& entry : entries) {
    if (lines.size() == shown) {
      lines.push_back(fmt::format("and {} more", entries.size() - shown));
      break;
    }
    lines.push_back(
        fmt::format("index {}: {} ({})", entry.index, driver::to_string(entry.gid), name(kind_of(entry))));
  }
  return fmt::format("{}", fmt::join(lines, ", "));
}

}  // namespace pollen::net
