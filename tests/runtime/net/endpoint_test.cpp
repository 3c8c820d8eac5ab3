#include "pollen/net/endpoint.hpp"

#include <doctest/doctest.h>

#include <cerrno>

#include "sides.hpp"

namespace pollen::net {

namespace {

QpEndpoint some_endpoint(std::uint32_t qpn) {
  QpEndpoint endpoint{.qpn = qpn,
                      .psn = 0xfedcba,
                      .gid = {},
                      .lid = 0x1234,
                      .gid_type = driver::GidType::roce_v1,
                      .transport = driver::Transport::ud,
                      .mtu_bytes = 4096,
                      .address = 0x7f00'0000'1000,
                      .bytes = 1 << 30,
                      .rkey = 0x8001,
                      .qkey = 0x11111111,
                      .reads_in = 16,
                      .reads_out = 8,
                      .min_rnr_timer = 12};
  for (std::size_t i = 0; i < 16; ++i) endpoint.gid.bytes[i] = static_cast<std::uint8_t>(i + 1);
  return endpoint;
}

std::optional<Error> with_byte(std::size_t at, std::byte value) {
  const QpEndpoint endpoint = some_endpoint(1);
  auto bytes = encode_endpoints({&endpoint, 1});
  bytes.at(at) = value;
  return error_of([&] { decode_endpoints(bytes); });
}

}  // namespace

TEST_SUITE("net.endpoint") {
  TEST_CASE("an endpoint is 64 bytes and comes back as it went") {
    const QpEndpoint endpoint = some_endpoint(0xabcdef);
    const auto bytes = encode_endpoints({&endpoint, 1});
    CHECK(bytes.size() == endpoint_bytes);
    CHECK(bytes[1] == std::byte{0xab});
    CHECK(bytes[8] == std::byte{1});      // the GID's first
    CHECK(bytes[50] == std::byte{0x10});  // of the MTU
    CHECK(bytes[58] == std::byte{12});
    const auto back = decode_endpoints(bytes);
    REQUIRE(back.size() == 1);
    CHECK(back[0] == endpoint);
  }

  TEST_CASE("an endpoint that no NIC could have is refused") {
    CHECK(says(with_byte(0, std::byte{1}), "QP number 0x1000001 has more than 24 bits"));
    CHECK(says(with_byte(4, std::byte{1}), "PSN"));
    CHECK(says(with_byte(24, std::byte{0xff}), "24") == false);  // a high address alone is no flaw
    CHECK(says(with_byte(32, std::byte{0xff}), "") == false);    // nor a long region that still fits
    CHECK(says(with_byte(51, std::byte{1}), "4097 is no MTU"));
    CHECK(says(with_byte(54, std::byte{3}), "GID type is unknown"));
    CHECK(says(with_byte(55, std::byte{3}), "transport is unknown"));
    CHECK(says(with_byte(58, std::byte{32}), "RNR timer 32 is above 31"));
    CHECK(says(with_byte(63, std::byte{1}), "the padding: it is not zero") == false);
    CHECK(says(with_byte(63, std::byte{1}), "it is not zero"));
    CHECK(
        says(error_of([] { decode_endpoints(std::vector<std::byte>(63)); }), "it needs 5 bytes, 4 are left"));

    QpEndpoint wraps = some_endpoint(1);
    wraps.address = ~std::uint64_t{0} - 9;
    wraps.bytes = 10;
    CHECK(has_code(error_of([&] { encode_endpoints({&wraps, 1}); }), EINVAL));
    wraps.bytes = 9;
    CHECK_FALSE(error_of([&] { encode_endpoints({&wraps, 1}); }));
  }

  TEST_CASE("one side may have none and the other as many as there may be") {
    Sides sides = connected();
    std::vector<QpEndpoint> many(max_endpoints);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = some_endpoint(static_cast<std::uint32_t>(i));
    std::vector<QpEndpoint> at_client;
    std::vector<QpEndpoint> at_server;
    const Errors errors = together([&] { at_client = exchange_endpoints(sides.client, {}, soon()); },
                                   [&] { at_server = exchange_endpoints(sides.server, many, soon()); });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_MESSAGE(!errors.server, what(errors.server));
    CHECK(at_client == many);
    CHECK(at_server.empty());
  }

  TEST_CASE("more endpoints than there may be are not sent") {
    Sides sides = connected();
    const std::vector<QpEndpoint> many(max_endpoints + 1);
    CHECK(has_code(error_of([&] { exchange_endpoints(sides.client, many, soon()); }), EMSGSIZE));
  }

  TEST_CASE("the smaller MTU holds, and only an MTU is one") {
    CHECK(negotiate_mtu(4096, 1024) == 1024);
    CHECK(negotiate_mtu(256, 256) == 256);
    for (const std::uint32_t bytes : {0U, 128U, 1000U, 8192U})
      CHECK(has_code(error_of([&] { negotiate_mtu(1024, bytes); }), EINVAL));
  }

  TEST_CASE("GID types that differ are refused, both named") {
    QpEndpoint mine = some_endpoint(1);
    QpEndpoint theirs = some_endpoint(2);
    CHECK_FALSE(error_of([&] { check_gid_types(mine, theirs); }));
    theirs.gid_type = driver::GidType::roce_v2;
    const auto error = error_of([&] { check_gid_types(mine, theirs); });
    CHECK(has_code(error, EPROTOTYPE));
    CHECK_MESSAGE(says(error, std::string(driver::name(driver::GidType::roce_v1))), what(error));
    CHECK(says(error, std::string(driver::name(driver::GidType::roce_v2))));
    CHECK(says(error, "Choose GIDs of one type"));
  }
}

}  // namespace pollen::net
