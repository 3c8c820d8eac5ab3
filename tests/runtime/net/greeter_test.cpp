#include "pollen/net/greeter.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "../lcore/child.hpp"
#include "pollen/net/handshake.hpp"
#include "sides.hpp"

namespace pollen::net {

namespace {

Hello hello(std::string bytes = "64") {
  return {.program = "rdma_bw",
          .release = "0.1.0",
          .device = "soft0",
          .parameters = {{"bytes", Rule::equal, std::move(bytes)}}};
}

struct Server {
  TcpListener listener{loopback};
  std::vector<Error> rejected;
  Greeter greeter;

  explicit Server(std::chrono::nanoseconds hello_limit = 10s)
      : greeter(listener, hello(), hello_limit, [this](const Error& error) { rejected.push_back(error); }) {}

  Socket dial() const { return tcp_connect({.host = "127.0.0.1", .port = listener.port()}, soon()); }
};

}  // namespace

TEST_SUITE("net.greeter") {
  TEST_CASE("strangers of every sort cost a socket each, and the next client is served") {
    Server server;
    const auto frame = encode_message(MessageType::hello, encode_hello(hello()));
    std::vector<std::vector<std::byte>> garbage;
    for (const std::string_view text :
         {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01", "\0", "POLLEN", "POLLEN\r\n\0\1\0\2\xff\xff\xff\xff"})
      garbage.emplace_back(bytes_of(text).begin(), bytes_of(text).end());
    garbage.emplace_back(frame.begin(), frame.end() - 1);  // a hello that never ends
    garbage.emplace_back();                                // a port scan
    garbage.emplace_back(1 << 20, std::byte{0xaa});
    auto damaged = frame;
    damaged[20] ^= std::byte{1};
    garbage.push_back(damaged);

    Agreement at_client;
    std::optional<Greeted> greeted;
    const Errors errors = together(
        [&] {
          for (const auto& bytes : garbage) {
            Socket stranger = server.dial();
            error_of([&] { stranger.send_all(bytes, soon()); });
          }
          Socket client = server.dial();
          at_client = exchange_hello(client, hello(), soon());
        },
        [&] { greeted = server.greeter.next(soon()); });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_MESSAGE(!errors.server, what(errors.server));
    REQUIRE(greeted);
    CHECK(greeted->agreement.number("bytes") == 64);
    CHECK(server.rejected.size() == garbage.size());
  }

  TEST_CASE("those that say nothing keep nobody waiting") {
    Server server;
    const Socket silent = server.dial();
    const Socket silent_too = server.dial();
    const Errors errors = together(
        [&] {
          Socket client = server.dial();
          exchange_hello(client, hello(), soon());
        },
        [&] { server.greeter.next(soon()); });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_MESSAGE(!errors.server, what(errors.server));
    CHECK(server.rejected.empty());
    CHECK_FALSE(silent.peer_closed());
  }

  TEST_CASE("those that say nothing end when their time is up") {
    Server server(100ms);
    const Socket silent = server.dial();
    const Socket silent_too = server.dial();
    CHECK(has_code(error_of([&] { server.greeter.next(Deadline::after(400ms)); }), ETIMEDOUT));
    REQUIRE(server.rejected.size() == 2);
    CHECK_MESSAGE(says(server.rejected[0], "the peer said nothing for 100 ms"), server.rejected[0].what());
    CHECK(wait_for(silent.fd(), POLLRDHUP, soon()) == Wake::ready);
    CHECK(silent.peer_closed());
  }

  TEST_CASE("a client whose hello comes late is still served, after another") {
    Server server;
    Socket late = server.dial();
    const Errors errors = together(
        [&] {
          Socket client = server.dial();
          exchange_hello(client, hello(), soon());
          exchange_hello(late, hello(), soon());
        },
        [&] {
          server.greeter.next(soon());
          server.greeter.next(soon());
        });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_MESSAGE(!errors.server, what(errors.server));
    CHECK(server.rejected.empty());
  }

  TEST_CASE("more silent connections than may wait push out the oldest") {
    Server server;
    std::vector<Socket> silent;
    for (int i = 0; i < 70; ++i) silent.push_back(server.dial());
    CHECK(has_code(error_of([&] { server.greeter.next(Deadline::after(200ms)); }), ETIMEDOUT));
    CHECK(server.rejected.size() == 6);
    CHECK(wait_for(silent[0].fd(), POLLRDHUP, soon()) == Wake::ready);
    CHECK_FALSE(silent[69].peer_closed());
  }

  TEST_CASE("a program that serves one peer ends with the reason why they can't agree") {
    TcpListener listener(loopback);
    Greeter greeter(listener, hello("128"), 10s, [](const Error& error) { throw error; });
    const Errors errors = together(
        [&] {
          Socket client = tcp_connect({.host = "127.0.0.1", .port = listener.port()}, soon());
          exchange_hello(client, hello("64"), soon());
        },
        [&] { greeter.next(soon()); });
    CHECK(says(errors.server, "bytes: the client has 64, the server has 128"));
    CHECK(says(errors.client, "bytes: the client has 64, the server has 128"));
  }

  TEST_CASE("a stop ends the wait at once") {
    Server server;
    const Fd stop(eventfd(1, EFD_CLOEXEC));
    CHECK(has_code(error_of([&] { server.greeter.next(Deadline::after(1h, stop.get())); }), ECANCELED));
  }

  TEST_CASE("a client that is killed in mid-handshake is rejected and the next one served") {
    Server server;
    lcore::Child child([&server](const auto& say) {
      Socket socket = server.dial();
      socket.send_all(bytes_of("POLLEN\r\n"), soon());
      say("half");
      std::this_thread::sleep_for(60s);
      return 0;
    });
    REQUIRE(child.hear() == "half");
    const Errors errors = together(
        [&] {
          std::this_thread::sleep_for(50ms);
          child.kill(SIGKILL);
          Socket client = server.dial();
          exchange_hello(client, hello(), soon());
        },
        [&] { server.greeter.next(soon()); });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_MESSAGE(!errors.server, what(errors.server));
    REQUIRE(server.rejected.size() == 1);
    CHECK(has_code(server.rejected[0], ECONNRESET));
  }
}

TEST_SUITE("net.handshake") {
  TEST_CASE("two processes go through the whole of it") {
    Server server;
    lcore::Child child([&server](const auto& say) {
      Socket socket = server.dial();
      const Agreement agreement = exchange_hello(socket, hello(), soon());
      const std::vector<QpEndpoint> mine(3, QpEndpoint{.qpn = 11, .gid = {}});
      const auto theirs = exchange_endpoints(socket, mine, soon());
      barrier(socket, "ready", soon());
      say(std::to_string(theirs.at(0).qpn) + " " + agreement.text("bytes"));
      const auto bytes = exchange_bytes(socket, bytes_of("from the client"), 100, soon());
      return bytes.size() == 4 ? 0 : 1;
    });
    Greeted greeted = server.greeter.next(soon());
    const std::vector<QpEndpoint> mine(3, QpEndpoint{.qpn = 22, .gid = {}});
    const auto theirs = exchange_endpoints(greeted.socket, mine, soon());
    CHECK(theirs == std::vector<QpEndpoint>(3, QpEndpoint{.qpn = 11, .gid = {}}));
    barrier(greeted.socket, "ready", soon());
    CHECK(child.hear() == "22 64");
    CHECK(std::ranges::equal(exchange_bytes(greeted.socket, bytes_of("four"), 100, soon()),
                             bytes_of("from the client")));
    CHECK(child.finish() == 0);
    CHECK(wait_for(greeted.socket.fd(), POLLRDHUP, soon()) == Wake::ready);
    CHECK(greeted.socket.peer_closed());
  }
}

}  // namespace pollen::net
