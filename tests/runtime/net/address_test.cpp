#include "pollen/net/address.hpp"

#include <doctest/doctest.h>

#include <cerrno>

#include "sides.hpp"

namespace pollen::net {

TEST_SUITE("net.address") {
  TEST_CASE("an address is a host with or without a port") {
    CHECK(parse_address("node7") == Address{.host = "node7", .port = 18515});
    CHECK(parse_address("node7.example.org:18600") == Address{.host = "node7.example.org", .port = 18600});
    CHECK(parse_address("10.0.0.1:1") == Address{.host = "10.0.0.1", .port = 1});
    CHECK(parse_address("10.0.0.1", 65535) == Address{.host = "10.0.0.1", .port = 65535});
  }

  TEST_CASE("an IPv6 address with a port is in brackets, without one it need not be") {
    CHECK(parse_address("::1") == Address{.host = "::1", .port = default_port});
    CHECK(parse_address("[::1]") == Address{.host = "::1", .port = default_port});
    CHECK(parse_address("[fe80::1%eth0]:18600") == Address{.host = "fe80::1%eth0", .port = 18600});
  }

  TEST_CASE("what is written is what is read") {
    for (const char* text : {"node7:18515", "10.0.0.1:1", "[::1]:65535", "[fe80::1%eth0]:18600"})
      CHECK(to_string(parse_address(text)) == text);
  }

  TEST_CASE("text that is no address is refused with what is wrong about it") {
    const auto reads = [](std::string_view text) { return error_of([&] { parse_address(text); }); };
    CHECK(says(reads(""), "the host is missing"));
    CHECK(says(reads(":18515"), "the host is missing"));
    CHECK(says(reads("node7:"), "the port \"\" is not a number"));
    CHECK(says(reads("node7:http"), "\"http\" is not a number"));
    CHECK(says(reads("node7:12a"), "\"12a\" is not a number"));
    CHECK(says(reads("node7:+5"), "is not a number"));
    CHECK(says(reads("node7:-1"), "not"));
    CHECK(says(reads("node7:0"), "the port 0 is not between 1 and 65535"));
    CHECK(says(reads("node7:65536"), "the port 65536 is not between"));
    CHECK(says(reads("node7:99999999999999999999"), "is not between"));
    CHECK(says(reads("[::1"), "never closed"));
    CHECK(says(reads("[::1]18515"), "only be :port"));
    CHECK(says(reads("[node7]:18515"), "brackets are for IPv6"));
    CHECK(says(reads("[]:18515"), "brackets are for IPv6"));
    CHECK(says(reads("two words"), "characters that no name has"));
    CHECK(says(reads(std::string_view("a\0b", 3)), "characters that no name has"));
    CHECK(says(reads(std::string(256, 'a')), "at most 255"));
    CHECK(has_code(reads("node7:0"), EINVAL));
    CHECK(says(reads("node7:0"), "Write host, host:port"));
  }

  TEST_CASE("numbers are resolved without being looked up") {
    const auto v4 = resolve({.host = "127.0.0.1", .port = 18515}, Deadline::after(0s));
    REQUIRE(v4.size() == 1);
    CHECK(to_string(v4[0]) == "127.0.0.1:18515");
    const auto v6 = resolve({.host = "::1", .port = 80}, Deadline::after(0s));
    REQUIRE(v6.size() == 1);
    CHECK(to_string(v6[0]) == "[::1]:80");
    CHECK(to_string(resolve({.host = "::ffff:10.1.2.3", .port = 80}, Deadline::after(0s))[0]) ==
          "10.1.2.3:80");
  }

  TEST_CASE("localhost is a name that resolves to this host") {
    const auto found = resolve({.host = "localhost", .port = 18515}, soon());
    REQUIRE(!found.empty());
    for (const SocketAddress& address : found) CHECK(address.port() == 18515);
  }

  TEST_CASE("a name that no host has is an error that names it") {
    const auto error = error_of([] { resolve({.host = "no-such-host.invalid", .port = 1}, soon()); });
    CHECK_MESSAGE(says(error, "cannot look up no-such-host.invalid"), what(error));
    CHECK(says(error, "Check the name"));
  }

  TEST_CASE("a look-up ends at its deadline") {
    const auto error =
        error_of([] { resolve({.host = "no-such-host.invalid", .port = 1}, Deadline::after(0s)); });
    CHECK(error.has_value());
  }
}

}  // namespace pollen::net
