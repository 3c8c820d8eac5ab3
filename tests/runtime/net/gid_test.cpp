#include "pollen/net/gid.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>

#include <cerrno>

#include "sides.hpp"

namespace pollen::net {

namespace {

using driver::GidType;

driver::GidEntry entry(std::uint32_t index, const char* text, GidType type) {
  driver::GidEntry made{.index = index, .gid = {}, .type = type};
  REQUIRE(inet_pton(AF_INET6, text, made.gid.bytes.data()) == 1);
  return made;
}

// As a RoCE NIC with an IPv4 and an IPv6 address lists them, with a hole.
driver::PortInfo roce_port() {
  driver::PortInfo port;
  port.gids = {entry(0, "fe80::1", GidType::roce_v1),
               entry(1, "fe80::1", GidType::roce_v2),
               entry(2, "::ffff:10.0.0.1", GidType::roce_v1),
               entry(3, "::ffff:10.0.0.1", GidType::roce_v2),
               entry(4, "::", GidType::roce_v1),
               entry(5, "2001:db8::1", GidType::roce_v2),
               entry(7, "::ffff:169.254.3.4", GidType::roce_v2)};
  return port;
}

void remove(driver::PortInfo& port, GidKind kind) {
  std::erase_if(port.gids, [kind](const auto& one) { return kind_of(one) == kind; });
}

}  // namespace

TEST_SUITE("net.gid") {
  TEST_CASE("kinds are preferred in their order, wherever they stand in the table") {
    driver::PortInfo port = roce_port();
    CHECK(choose_gid(port).index == 3);
    remove(port, GidKind::roce_v2_ipv4);
    CHECK(choose_gid(port).index == 5);
    remove(port, GidKind::roce_v2_ipv6);
    CHECK(choose_gid(port).index == 1);
    remove(port, GidKind::roce_v2_link_local);
    CHECK(choose_gid(port).index == 0);
    port.gids = {entry(0, "fe80::7", GidType::infiniband)};
    CHECK(choose_gid(port).index == 0);
  }

  TEST_CASE("a GID of the peer's kind is chosen") {
    CHECK(choose_gid(roce_port(), {}, GidKind::roce_v2_ipv6).index == 5);
    CHECK(choose_gid(roce_port(), {}, GidKind::roce_v1).index == 0);
    const auto error = error_of([] { choose_gid(roce_port(), {}, GidKind::infiniband); });
    CHECK(has_code(error, EADDRNOTAVAIL));
    CHECK_MESSAGE(says(error, "there is none of kind infiniband"), what(error));
  }

  TEST_CASE("an index that is asked for is taken if there is a GID, else the table is shown") {
    CHECK(choose_gid(roce_port(), 0).index == 0);
    CHECK(choose_gid(roce_port(), 7).index == 7);
    for (const std::uint32_t index : {4U, 6U, 8U, 0xffffffffU}) {
      const auto error = error_of([&] { choose_gid(roce_port(), index); });
      CHECK(has_code(error, EINVAL));
      CHECK_MESSAGE(says(error, "there is none at index " + std::to_string(index)), what(error));
      CHECK(says(error, "index 3: ::ffff:10.0.0.1 (rocev2-ipv4), index 5: 2001:db8::1 (rocev2-ipv6)"));
    }
    CHECK(says(error_of([] { choose_gid(roce_port(), 0, GidKind::roce_v2_ipv4); }),
               "the one at index 0 is rocev1 and the peer's is rocev2-ipv4"));
  }

  TEST_CASE("a port without GIDs says so, a long table is cut") {
    CHECK(says(error_of([] { choose_gid({}); }), "The port has none"));
    driver::PortInfo port;
    for (std::uint32_t i = 0; i < 256; ++i) port.gids.push_back(entry(i, "2001:db8::1", GidType::roce_v2));
    CHECK(gid_table(port).ends_with("index 15: 2001:db8::1 (rocev2-ipv6), and 240 more"));
  }

  TEST_CASE("the kinds on offer are the port's, or the one of the index") {
    CHECK(joined(gid_kinds(roce_port())) == "rocev2-ipv4,rocev2-ipv6,rocev2-link-local,rocev1");
    CHECK(joined(gid_kinds(roce_port(), 0)) == "rocev1");
    CHECK(joined(gid_kinds({})).empty());
    for (const GidKind kind : gid_kinds(roce_port())) CHECK(gid_kind_named(name(kind)) == kind);
    CHECK_FALSE(gid_kind_named("rocev3"));
  }
}

}  // namespace pollen::net
