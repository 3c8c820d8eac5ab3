#include "pollen/net/exchange.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>

#include "pollen/net/wire.hpp"
#include "sides.hpp"

namespace pollen::net {

TEST_SUITE("net.exchange") {
  TEST_CASE("each side gets the other's bytes, whatever their lengths") {
    using Bytes = std::vector<std::byte>;
    constexpr std::size_t mib = 1 << 20;
    const std::pair<std::size_t, std::size_t> lengths[] = {{0, 0},       {1, 0},       {32768, 32769},
                                                           {0, 200'000}, {300'000, 7}, {4 * mib, 4 * mib}};
    for (const auto& [client_bytes, server_bytes] : lengths) {
      Sides sides = connected();
      const Bytes from_client(client_bytes, std::byte{1});
      const Bytes from_server(server_bytes, std::byte{2});
      Bytes at_client;
      Bytes at_server;
      const Errors errors =
          together([&] { at_client = exchange_bytes(sides.client, from_client, 4 * mib, soon()); },
                   [&] { at_server = exchange_bytes(sides.server, from_server, 4 * mib, soon()); });
      CHECK_MESSAGE(!errors.client, what(errors.client));
      CHECK_MESSAGE(!errors.server, what(errors.server));
      CHECK(at_client == from_server);
      CHECK(at_server == from_client);
    }
  }

  TEST_CASE(
      "more than the peer takes is refused on both sides, more than one's own limit before it is sent") {
    Sides sides = connected();
    const std::vector<std::byte> many(1000);
    const Errors errors = together([&] { exchange_bytes(sides.client, many, 1000, soon()); },
                                   [&] { exchange_bytes(sides.server, {}, 999, soon()); });
    CHECK_MESSAGE(says(errors.server, "it says 1000 bytes, the limit is 999"), what(errors.server));
    CHECK(has_code(errors.client, ECONNABORTED));
    CHECK(says(errors.client, "it says 1000 bytes, the limit is 999"));
    CHECK(has_code(error_of([&] { exchange_bytes(sides.client, many, 999, soon()); }), EMSGSIZE));
  }

  TEST_CASE("parts that do not fit together are refused") {
    struct Part {
      std::uint32_t total, offset;
      std::size_t bytes;
    };
    const auto sent = [](std::vector<Part> parts) {
      Sides sides = connected();
      return together(
                 [&] {
                   for (const Part& part : parts) {
                     Writer out;
                     out.u32(part.total);
                     out.u32(part.offset);
                     out.bytes(std::vector<std::byte>(part.bytes));
                     exchange_message(
                         sides.client, MessageType::bytes, out.view(), [](auto) {}, soon());
                   }
                 },
                 [&] { exchange_bytes(sides.server, {}, 1 << 20, soon()); })
          .server;
    };
    CHECK(says(sent({{100, 0, 99}}), "it needs 100 bytes, 99 are left"));
    CHECK(says(sent({{100, 0, 101}}), "1 bytes follow"));
    CHECK(says(sent({{100, 1, 99}}), "a part is missing"));
    CHECK(says(sent({{40000, 0, 32768}, {40001, 32768, 7233}}), "it changed on the way"));
    CHECK(says(sent({{40000, 0, 32768}, {40000, 0, 7232}}), "a part is missing"));
    CHECK_FALSE(sent({{40000, 0, 32768}, {40000, 32768, 7232}}));
  }

  TEST_CASE("neither side passes a barrier before the other has come to it") {
    Sides sides = connected();
    std::atomic<int> came = 0;
    int seen_by_client = 0;
    int seen_by_server = 0;
    const Errors errors = together(
        [&] {
          ++came;
          barrier(sides.client, "ready", soon());
          seen_by_client = came;
        },
        [&] {
          std::this_thread::sleep_for(30ms);
          ++came;
          barrier(sides.server, "ready", soon());
          seen_by_server = came;
        });
    CHECK_FALSE(errors.client);
    CHECK_FALSE(errors.server);
    CHECK(seen_by_client == 2);
    CHECK(seen_by_server == 2);
  }

  TEST_CASE("sides that are at different barriers are told so, both in the same words") {
    Sides sides = connected();
    const Errors errors = together([&] { barrier(sides.client, "done", soon()); },
                                   [&] { barrier(sides.server, "ready", soon()); });
    REQUIRE(errors.client);
    REQUIRE(errors.server);
    CHECK(errors.server->text().why == "the server is at 'ready', the client at 'done'");
    CHECK(errors.client->text().why == errors.server->text().why);
  }

  TEST_CASE("a barrier that the other never reaches ends at the deadline") {
    Sides sides = connected();
    CHECK(has_code(error_of([&] { barrier(sides.client, "ready", Deadline::after(50ms)); }), ETIMEDOUT));
  }
}

}  // namespace pollen::net
