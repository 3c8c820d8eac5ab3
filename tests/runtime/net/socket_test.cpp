#include "pollen/net/socket.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <vector>

#include "../lcore/child.hpp"
#include "sides.hpp"

namespace pollen::net {

TEST_SUITE("net.socket") {
  TEST_CASE("bytes arrive whole and in order, also more than the buffers hold") {
    Sides sides = connected();
    std::vector<std::byte> sent(16 << 20);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 2654435761U >> 24);
    std::vector<std::byte> got(sent.size());
    const Errors errors =
        together([&] { sides.client.send_all(sent, soon()); }, [&] { sides.server.recv_exact(got, soon()); });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_MESSAGE(!errors.server, what(errors.server));
    CHECK(got == sent);
  }

  TEST_CASE("a wait for a silent peer ends at its deadline") {
    Sides sides = connected();
    std::byte one;
    const auto error = error_of([&] { sides.client.recv_exact({&one, 1}, Deadline::after(50ms)); });
    CHECK(has_code(error, ETIMEDOUT));
    CHECK(says(error, sides.client.peer()));
  }

  TEST_CASE("sending to a peer that does not read ends at its deadline") {
    Sides sides = connected();
    const std::vector<std::byte> much(64 << 20);
    CHECK(has_code(error_of([&] { sides.client.send_all(much, Deadline::after(100ms)); }), ETIMEDOUT));
  }

  TEST_CASE("a peer that sends a byte at a time can't stretch the deadline") {
    Sides sides = connected();
    std::vector<std::byte> wanted(1000);
    std::atomic<bool> done = false;
    std::size_t sent = 0;
    const Errors errors = together(
        [&] {
          while (!done && sent < wanted.size()) {
            sides.client.send_all(bytes_of("x"), soon());
            ++sent;
            std::this_thread::sleep_for(20ms);
          }
        },
        [&] {
          const auto error = error_of([&] { sides.server.recv_exact(wanted, Deadline::after(100ms)); });
          done = true;
          if (error) throw *error;
        });
    CHECK(has_code(errors.server, ETIMEDOUT));
    CHECK(sent < wanted.size());
  }

  TEST_CASE("a stop ends a wait without a time limit at once") {
    Sides sides = connected();
    const Fd stop(eventfd(0, EFD_CLOEXEC));
    std::byte one;
    const Errors errors = together([&] { eventfd_write(stop.get(), 1); },
                                   [&] {
                                     sides.server.recv_exact({&one, 1}, Deadline::after(1h, stop.get()));
                                   });
    CHECK(has_code(errors.server, ECANCELED));
  }

  TEST_CASE("a closed peer is seen at once, also behind what it sent before") {
    Sides sides = connected();
    CHECK_FALSE(sides.client.peer_closed());
    sides.server.send_all(bytes_of("last words"), soon());
    { const Socket gone = std::move(sides.server); }
    CHECK(wait_for(sides.client.fd(), POLLRDHUP, soon()) == Wake::ready);
    CHECK(sides.client.peer_closed());
    std::vector<std::byte> got(10);
    sides.client.recv_exact(got, soon());
    const auto error = error_of([&] { sides.client.recv_exact(got, soon()); });
    CHECK(has_code(error, ECONNRESET));
    CHECK_MESSAGE(says(error, "the peer closed it"), what(error));
  }

  TEST_CASE("sending to a peer that is gone is an error, not a signal") {
    Sides sides = connected();
    { const Socket gone = std::move(sides.server); }
    const std::vector<std::byte> some(1000);
    const auto error = error_of([&] {
      for (int i = 0; i < 1000; ++i) sides.client.send_all(some, soon());
    });
    CHECK(has_code(error, ECONNRESET));
  }

  TEST_CASE("a killed process is seen by its peer") {
    TcpListener listener(loopback);
    lcore::Child child([port = listener.port()](const auto& say) {
      Socket socket = tcp_connect({.host = "127.0.0.1", .port = port}, soon());
      say("connected");
      std::this_thread::sleep_for(60s);
      return 0;
    });
    Socket socket = listener.accept(soon());
    REQUIRE(child.hear() == "connected");
    CHECK_FALSE(socket.peer_closed());
    child.kill(SIGKILL);
    CHECK(wait_for(socket.fd(), POLLRDHUP, soon()) == Wake::ready);
    CHECK(socket.peer_closed());
  }

  TEST_CASE("finish delivers what was sent, though input lies unread") {
    Sides sides = connected();
    sides.client.send_all(bytes_of("never read"), soon());
    CHECK(wait_for(sides.server.fd(), POLLIN, soon()) == Wake::ready);
    std::vector<std::byte> got(4);
    const Errors errors = together(
        [&] {
          std::this_thread::sleep_for(50ms);
          Socket client = std::move(sides.client);
          client.recv_exact(got, soon());
        },
        [&] {
          Socket server = std::move(sides.server);
          server.send_all(bytes_of("bye."), soon());
          server.finish(soon());
        });
    CHECK_MESSAGE(!errors.client, what(errors.client));
    CHECK_FALSE(errors.server);
  }

  TEST_CASE("peers have addresses in words, IPv4 ones as IPv4") {
    TcpListener listener({.host = "", .port = 0});
    Socket client = tcp_connect({.host = "127.0.0.1", .port = listener.port()}, soon());
    Socket server = listener.accept(soon());
    CHECK(server.peer().starts_with("127.0.0.1:"));
    CHECK(client.peer() == "127.0.0.1:" + std::to_string(listener.port()));
  }
}

}  // namespace pollen::net
