// Which of a port's GIDs to use. Never a fixed index: what an index means differs between NICs and
// changes while they run. GIDs are chosen by kind, and both sides use the same kind.
//
// Errors: pollen::Error, EINVAL or EADDRNOTAVAIL; each lists the port's GIDs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pollen/drivers/driver.hpp"

namespace pollen::net {

// In the order in which they are preferred.
enum class GidKind : std::uint8_t {
  roce_v2_ipv4,
  roce_v2_ipv6,
  roce_v2_link_local,
  roce_v1,
  infiniband,
};
std::string_view name(GidKind kind) noexcept;  // "rocev2-ipv4"
std::optional<GidKind> gid_kind_named(std::string_view name) noexcept;
GidKind kind_of(const driver::GidEntry& entry) noexcept;

// The kinds that the port has, best first; of the entry at `index` only, if there is one. Joined
// with commas they are the value of a hello parameter with Rule::common, which settles on a kind.
std::vector<GidKind> gid_kinds(const driver::PortInfo& port, std::optional<std::uint32_t> index = {});
std::string joined(const std::vector<GidKind>& kinds);

// The port's best GID, of that kind or at that index where one is asked for.
driver::GidEntry choose_gid(const driver::PortInfo& port, std::optional<std::uint32_t> index = {},
                            std::optional<GidKind> kind = {});

// "index 3: ::ffff:10.0.0.1 (rocev2-ipv4), …"
std::string gid_table(const driver::PortInfo& port);

}  // namespace pollen::net
