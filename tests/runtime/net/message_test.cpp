#include "pollen/net/message.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "../lcore/child.hpp"
#include "pollen/net/wire.hpp"
#include "sides.hpp"

namespace pollen::net {

namespace {

// A frame as another release would make it.
std::vector<std::byte> frame_of(std::uint16_t version, std::uint16_t type, std::span<const std::byte> body) {
  Writer out;
  out.bytes(bytes_of("POLLEN\r\n"));
  out.u16(version);
  out.u16(type);
  out.u32(static_cast<std::uint32_t>(body.size()));
  out.bytes(body);
  const auto so_far = out.view();
  out.u32(static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(so_far.data()), static_cast<uInt>(so_far.size()))));
  return out.take();
}

// What the receiving server makes of a client that sends this and closes.
std::optional<Error> received(std::span<const std::byte> bytes) {
  Sides sides = connected();
  return together(
             [&] {
               Socket client = std::move(sides.client);
               client.send_all(bytes, soon());
             },
             [&] { recv_message(sides.server, MessageType::hello, soon()); })
      .server;
}

}  // namespace

TEST_SUITE("net.message") {
  TEST_CASE("a frame has the layout that is drawn") {
    const auto frame = encode_message(MessageType::barrier, bytes_of("ab"));
    REQUIRE(frame.size() == 22);
    const std::string_view text(reinterpret_cast<const char*>(frame.data()), frame.size());
    CHECK(text.substr(0, 18) == std::string_view("POLLEN\r\n\0\1\0\4\0\0\0\2ab", 18));
    const auto body = checked_body(frame);
    CHECK(std::ranges::equal(body, bytes_of("ab")));
  }

  TEST_CASE("a message arrives as it was sent, up to the largest") {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, max_body_bytes}) {
      Sides sides = connected();
      const std::vector<std::byte> body(bytes, std::byte{7});
      std::vector<std::byte> got;
      const Errors errors = together([&] { send_message(sides.client, MessageType::bytes, body, soon()); },
                                     [&] { got = recv_message(sides.server, MessageType::bytes, soon()); });
      CHECK_MESSAGE(!errors.server, what(errors.server));
      CHECK(got == body);
    }
    CHECK(has_code(
        error_of([] { encode_message(MessageType::bytes, std::vector<std::byte>(max_body_bytes + 1)); }),
        EMSGSIZE));
  }

  TEST_CASE("a peer of another protocol is known by its first bytes") {
    const auto error = received(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    CHECK(has_code(error, EPROTO));
    CHECK_MESSAGE(says(error, "it does not speak Pollen's handshake: first bytes 'GET / HTTP/1'"),
                  what(error));
    CHECK(says(received(bytes_of("\x16\x03\x01\x02")), "first bytes '\\x16\\x03\\x01\\x02'"));
    CHECK(has_code(received(bytes_of("\n")), EPROTO));
    CHECK(has_code(received(bytes_of("POLLEN\n\n and more")), EPROTO));
  }

  TEST_CASE("a stranger gets no word and loses its connection") {
    Sides sides = connected();
    const Errors errors = together(
        [&] {
          sides.client.send_all(bytes_of("SSH-2.0-OpenSSH_9.2\r\n"), soon());
          std::byte one;
          sides.client.recv_exact({&one, 1}, soon());
        },
        [&] {
          Socket server = std::move(sides.server);
          recv_message(server, MessageType::hello, soon());
        });
    CHECK(has_code(errors.server, EPROTO));
    CHECK(has_code(errors.client, ECONNRESET));
  }

  TEST_CASE("another version is refused in the same words on both sides") {
    Sides sides = connected();
    const Errors errors = together(
        [&] {
          sides.client.send_all(frame_of(7, 2, bytes_of("whatever version 7 says")), soon());
          recv_message(sides.client, MessageType::hello, soon());
        },
        [&] { recv_message(sides.server, MessageType::hello, soon()); });
    CHECK(has_code(errors.server, EPROTONOSUPPORT));
    CHECK(has_code(errors.client, ECONNABORTED));
    REQUIRE(errors.client);
    REQUIRE(errors.server);
    CHECK(errors.server->text().why == "the client speaks version 7 of the handshake, the server version 1");
    CHECK(errors.server->text().remedy == "Use the same release of Pollen on both sides");
    CHECK(errors.client->text().why == errors.server->text().why);
    CHECK(errors.client->text().remedy == errors.server->text().remedy);
  }

  TEST_CASE("a refusal of another version is understood") {
    const auto body = encode_refusal({.why = "the sun is in the way", .remedy = "Wait"});
    const auto error = received(frame_of(7, 1, body));
    CHECK(has_code(error, ECONNABORTED));
    CHECK_MESSAGE(says(error, "the sun is in the way. Wait"), what(error));
  }

  TEST_CASE("a peer that says nothing is an error that says so") {
    Sides sides = connected();
    const auto error =
        error_of([&] { recv_message(sides.server, MessageType::hello, Deadline::after(100ms)); });
    CHECK(has_code(error, ETIMEDOUT));
    CHECK_MESSAGE(says(error, "the peer said nothing for "), what(error));
  }

  TEST_CASE("a peer that takes its time is given up at the deadline, with how far it got") {
    Sides sides = connected();
    std::atomic<bool> done = false;
    const Errors errors = together(
        [&] {
          for (const std::byte byte : encode_message(MessageType::hello, {})) {
            if (done) return;
            sides.client.send_all({&byte, 1}, soon());
            std::this_thread::sleep_for(100ms);
          }
        },
        [&] {
          const auto error =
              error_of([&] { recv_message(sides.server, MessageType::hello, Deadline::after(300ms)); });
          done = true;
          if (error) throw *error;
        });
    CHECK(has_code(errors.server, ETIMEDOUT));
    CHECK_MESSAGE(says(errors.server, "of 16 bytes in "), what(errors.server));
  }

  TEST_CASE("a peer that is killed in the middle of a message is noticed") {
    TcpListener listener(loopback);
    lcore::Child child([port = listener.port()](const auto& say) {
      Socket socket = tcp_connect({.host = "127.0.0.1", .port = port}, soon());
      const auto frame = encode_message(MessageType::hello, std::vector<std::byte>(1000));
      socket.send_all(std::span(frame).first(500), soon());
      say("half");
      std::this_thread::sleep_for(60s);
      return 0;
    });
    Socket socket = listener.accept(soon());
    REQUIRE(child.hear() == "half");
    const Errors errors =
        together([&] { child.kill(SIGKILL); }, [&] { recv_message(socket, MessageType::hello, soon()); });
    CHECK(has_code(errors.server, ECONNRESET));
    CHECK_MESSAGE(says(errors.server, "the peer closed it"), what(errors.server));
  }

  TEST_CASE("a length beyond the limit is refused before anything of that size is made") {
    auto frame = encode_message(MessageType::hello, {});
    frame[12] = std::byte{0xff};
    const auto error = received(frame);
    CHECK(has_code(error, EBADMSG));
    CHECK_MESSAGE(says(error, "the limit is 65536"), what(error));
  }

  TEST_CASE("damage on the way is noticed wherever it is") {
    const auto sent = encode_message(MessageType::hello, bytes_of("twelve bytes"));
    for (const std::size_t at : {std::size_t{16}, std::size_t{27}, sent.size() - 1}) {
      auto frame = sent;
      frame[at] ^= std::byte{0x10};
      const auto error = received(frame);
      CHECK(has_code(error, EBADMSG));
      CHECK_MESSAGE(says(error, "damaged on the way"), what(error));
    }
  }

  TEST_CASE("a message out of turn is refused on both sides") {
    Sides sides = connected();
    const Errors errors = together(
        [&] {
          send_message(sides.client, MessageType::barrier, {}, soon());
          recv_message(sides.client, MessageType::barrier, soon());
        },
        [&] { recv_message(sides.server, MessageType::hello, soon()); });
    CHECK(has_code(errors.server, EPROTO));
    CHECK_MESSAGE(
        says(errors.server, "the client sent message type 4 (barrier) where type 2 (hello) belongs"),
        what(errors.server));
    REQUIRE(errors.client);
    CHECK(errors.client->text().why == errors.server->text().why);
    CHECK(says(received(frame_of(protocol_version, 99, {})), "message type 99 (unknown)"));
  }

  TEST_CASE("a reason that no text can carry is still a refusal") {
    Sides sides = connected();
    const std::string why = "a\x1b[2J" + std::string(2000, 'x');
    const Errors errors = together([&] { recv_message(sides.client, MessageType::hello, soon()); },
                                   [&] { refuse(sides.server, {.why = why, .remedy = "\xff"}); });
    CHECK(has_code(errors.client, ECONNABORTED));
    CHECK(says(errors.client, "a [2Jxxx"));
  }
}

}  // namespace pollen::net
