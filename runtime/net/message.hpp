// The handshake's messages: framed, versioned, bounded. A frame, all fields big-endian:
//
//     0               8       10      12              16                16+n
//     +---------------+-------+-------+---------------+--------- … -----+---------------+
//     | "POLLEN\r\n"  |version| type  | n = body bytes| body            | CRC-32 of all |
//     +---------------+-------+-------+---------------+--------- … -----+---------------+
//
// The line end in the magic shows streams that were altered on the way. The header and the refusal
// message keep their layout in every version, so that any two releases can tell each other why they
// part.
//
// A peer that says something else, another version, too much, nothing, or goes away costs the
// socket and throws Error: EPROTO (not ours: no word is said to it), EPROTONOSUPPORT (other
// version), EBADMSG (damaged), ECONNABORTED (refused, by either side), ETIMEDOUT, ECONNRESET,
// ECANCELED. Where the peer speaks the protocol it is told why, by a refusal.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pollen/base/error.hpp"
#include "pollen/net/deadline.hpp"
#include "pollen/net/socket.hpp"

namespace pollen::net {

inline constexpr std::uint16_t protocol_version = 1;
inline constexpr std::size_t header_bytes = 16;
inline constexpr std::size_t trailer_bytes = 4;
inline constexpr std::size_t max_body_bytes = 64 * 1024;

enum class MessageType : std::uint16_t { refusal = 1, hello = 2, endpoints = 3, barrier = 4, bytes = 5 };
std::string_view name(MessageType type) noexcept;

struct Header {
  std::uint16_t version;
  MessageType type;  // may be none of those above
  std::uint32_t body_bytes;
};

// Why there will be no connection, in the same words on both sides: of "the client" and "the
// server", not of "this side".
struct Refusal {
  std::string why;
  std::string remedy;
};

// Bytes, without a socket.
std::vector<std::byte> encode_message(MessageType type, std::span<const std::byte> body);
bool starts_like_a_message(std::span<const std::byte> bytes) noexcept;  // as far as there are bytes
Header decode_header(std::span<const std::byte, header_bytes> bytes);
// frame: header, body and CRC. Returns a view of the body.
std::span<const std::byte> checked_body(std::span<const std::byte> frame);
std::vector<std::byte> encode_refusal(const Refusal& refusal);
Refusal decode_refusal(std::span<const std::byte> body);

void send_message(Socket& socket, MessageType type, std::span<const std::byte> body,
                  const Deadline& deadline);
// The body of the next message, which has to be of this type.
std::vector<std::byte> recv_message(Socket& socket, MessageType type, const Deadline& deadline);

// Tells the peer why and ends the connection; the socket is of no more use but to be closed. Takes
// half a second at most. Never throws: the reason for refusing is the error to report.
void refuse(Socket& socket, const Refusal& refusal) noexcept;
// The error that a refusal is, on either side.
Error refused(const Socket& socket, const Refusal& refusal);

// Runs a step that judges what the peer said. If it throws, the peer is told before the error goes on.
template <typename Step>
auto or_refuse(Socket& socket, Step&& step) {
  try {
    return step();
  } catch (const Error& error) {
    refuse(socket, {.why = error.text().why.empty() ? error.what() : error.text().why,
                    .remedy = error.text().remedy});
    throw;
  }
}

}  // namespace pollen::net
