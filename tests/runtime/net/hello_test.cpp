#include "pollen/net/hello.hpp"

#include <doctest/doctest.h>

#include <cerrno>

#include "pollen/net/wire.hpp"
#include "sides.hpp"

namespace pollen::net {

namespace {

Hello hello_with(std::vector<Parameter> parameters) {
  return {.program = "rdma_bw",
          .release = "0.1.0",
          .device = "soft0 (software NIC)",
          .parameters = std::move(parameters)};
}

Agreement settled(std::vector<Parameter> client, std::vector<Parameter> server, Role role = Role::client) {
  return settle(hello_with(std::move(client)), hello_with(std::move(server)), role);
}

}  // namespace

TEST_SUITE("net.hello") {
  TEST_CASE("a hello comes back as it went") {
    const Hello hello = hello_with(
        {{"bytes", Rule::equal, "65536"}, {"note", Rule::inform, "4 µs"}, {"empty", Rule::common, ""}});
    CHECK(decode_hello(encode_hello(hello)) == hello);
  }

  TEST_CASE("each rule settles in its own way, the same on both sides") {
    const std::vector<Parameter> client{{"bytes", Rule::equal, "64"},
                                        {"mtu", Rule::smaller, "4096"},
                                        {"wait", Rule::larger, "9"},
                                        {"gid", Rule::common, "rocev2-ipv4,rocev2-ipv6,rocev1"},
                                        {"cores", Rule::inform, "0-3"}};
    const std::vector<Parameter> server{{"gid", Rule::common, "infiniband,rocev1,rocev2-ipv6"},
                                        {"wait", Rule::larger, "10"},
                                        {"mtu", Rule::smaller, "1024"},
                                        {"bytes", Rule::equal, "64"},
                                        {"cores", Rule::inform, "8"}};
    for (const Role role : {Role::client, Role::server}) {
      const Agreement agreement = settled(client, server, role);
      CHECK(agreement.number("bytes") == 64);
      CHECK(agreement.number("mtu") == 1024);
      CHECK(agreement.number("wait") == 10);
      CHECK(agreement.text("gid") == "rocev2-ipv6");
      CHECK(agreement.text("cores") == (role == Role::client ? "8" : "0-3"));
    }
  }

  TEST_CASE("all that differs is named at once, with both values") {
    const auto error = error_of([] {
      settled(
          {{"bytes", Rule::equal, "64"}, {"test", Rule::equal, "WRITE"}, {"mtu", Rule::smaller, "x"}},
          {{"bytes", Rule::equal, "4096"}, {"mtu", Rule::smaller, "1024"}, {"depth", Rule::equal, "128"}});
    });
    CHECK(has_code(error, ECONNABORTED));
    CHECK_MESSAGE(says(error,
                       "bytes: the client has 64, the server has 4096; test: the client has WRITE, the "
                       "server has none; mtu: the client has x, the server has 1024; depth: the client "
                       "has none, the server has 128"),
                  what(error));
    CHECK(says(error, "Give both sides the same options"));
  }

  TEST_CASE("lists without a common item, other rules and other programs are no agreement") {
    CHECK(says(error_of([] {
                 settled({{"g", Rule::common, "a,b"}}, {{"g", Rule::common, "c"}});
               }),
               "g: the client has a,b, the server has c"));
    CHECK(says(error_of([] {
                 settled({{"g", Rule::common, ""}}, {{"g", Rule::common, ""}});
               }),
               "an empty one"));
    CHECK(says(error_of([] {
                 settled({{"m", Rule::smaller, "1"}}, {{"m", Rule::larger, "1"}});
               }),
               "m is settled by rule 2 on the client and 3 on the server"));
    Hello other = hello_with({});
    other.program = "rdma_lat";
    CHECK(says(error_of([&] { settle(hello_with({}), other, Role::client); }),
               "the client is rdma_bw, the server rdma_lat"));
  }

  TEST_CASE("numbers are whole and fit 64 bits, or there is no agreement") {
    for (const char* value : {"", "-1", "1.5", "0x10", " 1", "18446744073709551616"})
      CHECK(error_of([&] { settled({{"n", Rule::smaller, value}}, {{"n", Rule::smaller, "1"}}); }));
    CHECK(settled({{"n", Rule::larger, "18446744073709551615"}}, {{"n", Rule::larger, "1"}}).number("n") ==
          18446744073709551615U);
    CHECK(has_code(error_of([] { settled({}, {}).number("n"); }), EINVAL));
    CHECK(has_code(error_of([] {
                     settled({{"n", Rule::equal, "x"}}, {{"n", Rule::equal, "x"}}).number("n");
                   }),
                   EINVAL));
  }

  TEST_CASE("a peer may tell what this side has no word for") {
    const Agreement agreement = settled({}, {{"news", Rule::inform, "yes"}});
    CHECK(agreement.text("news") == "yes");
    CHECK(agreement.peer.device == "soft0 (software NIC)");
  }

  TEST_CASE("two processes' hellos meet in the middle") {
    Sides sides = connected();
    Agreement at_client;
    Agreement at_server;
    const Errors errors = together(
        [&] {
          at_client = exchange_hello(sides.client, hello_with({{"mtu", Rule::smaller, "4096"}}), soon());
        },
        [&] {
          at_server = exchange_hello(sides.server, hello_with({{"mtu", Rule::smaller, "1024"}}), soon());
        });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_MESSAGE(!errors.server, what(errors.server));
    CHECK(at_client.number("mtu") == 1024);
    CHECK(at_server.settled == at_client.settled);
  }

  TEST_CASE("a mismatch ends both sides with the same sentence") {
    Sides sides = connected();
    const Errors errors = together(
        [&] {
          exchange_hello(sides.client, hello_with({{"bytes", Rule::equal, "64"}}), soon());
        },
        [&] {
          exchange_hello(sides.server, hello_with({{"bytes", Rule::equal, "128"}}), soon());
        });
    REQUIRE(errors.client);
    REQUIRE(errors.server);
    CHECK(errors.client->code().value() == ECONNABORTED);
    CHECK(errors.server->code().value() == ECONNABORTED);
    CHECK(errors.client->text().attempted == errors.server->text().attempted);
    CHECK(errors.client->text().why == "bytes: the client has 64, the server has 128");
    CHECK(errors.server->text().why == errors.client->text().why);
    CHECK(errors.server->text().remedy == errors.client->text().remedy);
  }

  TEST_CASE("a client that connected to another protocol's server says what answered") {
    Sides sides = connected();
    const Errors errors =
        together([&] { exchange_hello(sides.client, hello_with({}), soon()); },
                 [&] { sides.server.send_all(bytes_of("SSH-2.0-OpenSSH_9.2p1\r\n"), soon()); });
    CHECK_MESSAGE(says(errors.client, "first bytes 'SSH-2.0-Open'"), what(errors.client));
  }

  TEST_CASE("hellos beyond the limits are neither made nor taken") {
    CHECK(has_code(error_of([] {
                     encode_hello(hello_with({{std::string(65, 'n'), Rule::equal, ""}}));
                   }),
                   EMSGSIZE));
    CHECK(has_code(error_of([] {
                     encode_hello(hello_with({{"n", Rule::equal, std::string(1025, 'v')}}));
                   }),
                   EMSGSIZE));
    CHECK(has_code(error_of([] { encode_hello(hello_with(std::vector<Parameter>(257))); }), EMSGSIZE));

    const auto decoded = [](std::uint16_t count,
                            std::vector<std::pair<const char*, std::uint8_t>> parameters) {
      Writer out;
      for (const char* text : {"rdma_bw", "0.1.0", "soft0"}) out.text(text, 100, "x");
      out.u16(count);
      for (const auto& [name, rule] : parameters) {
        out.text(name, 100, "x");
        out.u8(rule);
        out.text("1", 100, "x");
      }
      return error_of([&] { decode_hello(out.view()); });
    };
    CHECK_FALSE(decoded(2, {{"a", 0}, {"b", 4}}));
    CHECK(says(decoded(2, {{"a", 0}}), "a parameter's name"));
    CHECK(says(decoded(1, {{"a", 0}, {"b", 0}}), "follow it"));
    CHECK(says(decoded(257, {}), "it says 257, the limit is 256"));
    CHECK(says(decoded(1, {{"a", 5}}), "its rule is unknown"));
    CHECK(says(decoded(2, {{"a", 0}, {"a", 0}}), "it is there twice"));
  }
}

}  // namespace pollen::net
