// Two ends of a real TCP connection on loopback, and what each of them ran into.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "pollen/base/error.hpp"
#include "pollen/net/socket.hpp"
#include "pollen/net/tcp_connect.hpp"
#include "pollen/net/tcp_listener.hpp"

namespace pollen::net {

using namespace std::chrono_literals;

inline const Address loopback{.host = "127.0.0.1", .port = 0};

// Far beyond what a step takes: a test that reaches it has failed.
inline Deadline soon() { return Deadline::after(20s); }

inline std::optional<Error> error_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

inline bool says(const std::optional<Error>& error, std::string_view part) {
  return error && std::string_view(error->what()).find(part) != std::string_view::npos;
}
inline bool has_code(const std::optional<Error>& error, int errnum) {
  return error && error->code().value() == errnum;
}

struct Sides {
  Socket client;
  Socket server;
};

inline Sides connected() {
  TcpListener listener(loopback);
  Socket client = tcp_connect({.host = "127.0.0.1", .port = listener.port()}, soon());
  return {.client = std::move(client), .server = listener.accept(soon())};
}

struct Errors {
  std::optional<Error> client;
  std::optional<Error> server;
};

// Runs both sides at the same time.
inline Errors together(const std::function<void()>& client, const std::function<void()>& server) {
  Errors errors;
  std::thread other([&] { errors.server = error_of(server); });
  errors.client = error_of(client);
  other.join();
  return errors;
}

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// For messages of a failed check.
inline std::string what(const std::optional<Error>& error) { return error ? error->what() : "no error"; }

}  // namespace pollen::net
