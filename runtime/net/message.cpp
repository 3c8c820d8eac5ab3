#include "pollen/net/message.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "pollen/net/wire.hpp"

namespace pollen::net {

namespace {

constexpr std::string_view magic = "POLLEN\r\n";
constexpr std::size_t max_reason_bytes = 1024;
constexpr std::chrono::milliseconds refusal_limit{250};

std::string on(const Socket& socket) { return fmt::format("the connection to {}", socket.peer()); }

std::uint32_t crc_of(std::span<const std::byte> bytes) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

std::string quoted(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    if (c >= ' ' && c <= '~')
      out += c;
    else
      out += fmt::format("\\x{:02x}", std::to_integer<unsigned>(byte));
  }
  return out;
}

// A reason may quote anything; as much of it as a refusal can carry.
std::string made_plain(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; }, ' ');
  if (text.size() > max_reason_bytes) text.resize(max_reason_bytes);
  for (int cut = 0; cut < 3 && !is_plain_text(text); ++cut) text.pop_back();  // half a character at the end
  return is_plain_text(text) ? text : "the reason can't be written";
}

[[noreturn]] void reject_stranger(Socket& socket, std::span<std::byte, header_bytes> header,
                                  std::size_t have) {
  have += socket.recv_now(header.subspan(have));
  throw Error(EPROTO, {.attempted = "shake hands",
                       .on = on(socket),
                       .why = fmt::format("it does not speak Pollen's handshake: first bytes '{}'",
                                          quoted(header.first(std::min<std::size_t>(have, 12)))),
                       .remedy = "Check that host and port are those of a Pollen program"});
}

// A deadline that passes here deserves to say how far the peer got.
[[noreturn]] void reject_slow(const Socket& socket, std::size_t have, std::size_t want,
                              std::chrono::nanoseconds waited) {
  throw Error(ETIMEDOUT, {.attempted = "shake hands",
                          .on = on(socket),
                          .why = have == 0 ? fmt::format("the peer said nothing for {}", in_words(waited))
                                           : fmt::format("the peer sent only {} of {} bytes in {}", have,
                                                         want, in_words(waited)),
                          .remedy = "Check that it is a Pollen program and that it still runs"});
}

void recv_part(Socket& socket, std::vector<std::byte>& frame, std::size_t from, const Deadline& deadline) {
  const auto started = Deadline::Clock::now();
  std::size_t have = from;
  try {
    while (have < frame.size()) {
      have += socket.recv_some(std::span(frame).subspan(have), deadline);
      if (have <= header_bytes && !starts_like_a_message(std::span(frame).first(have)))
        reject_stranger(socket, std::span(frame).first<header_bytes>(), have);
    }
  } catch (const Error& error) {
    if (error.code().value() == ETIMEDOUT)
      reject_slow(socket, have, frame.size(), Deadline::Clock::now() - started);
    throw;
  }
}

Error unexpected_type(const Socket& socket, MessageType got, MessageType wanted) {
  return Error(EPROTO, {.attempted = "shake hands",
                        .on = on(socket),
                        .why = fmt::format("the {} sent message type {} ({}) where type {} ({}) belongs",
                                           name(other(socket.role())), static_cast<unsigned>(got), name(got),
                                           static_cast<unsigned>(wanted), name(wanted)),
                        .remedy = "Run the same program on both sides"});
}

Error other_version(const Socket& socket, std::uint16_t version) {
  return Error(
      EPROTONOSUPPORT,
      {.attempted = "shake hands",
       .on = on(socket),
       .why = fmt::format("the {} speaks version {} of the handshake, the {} version {}",
                          name(other(socket.role())), version, name(socket.role()), protocol_version),
       .remedy = "Use the same release of Pollen on both sides"});
}

}  // namespace

std::string_view name(MessageType type) noexcept {
  switch (type) {
    case MessageType::refusal:
      return "refusal";
    case MessageType::hello:
      return "hello";
    case MessageType::endpoints:
      return "endpoints";
    case MessageType::barrier:
      return "barrier";
    case MessageType::bytes:
      return "bytes";
  }
  return "unknown";
}

std::vector<std::byte> encode_message(MessageType type, std::span<const std::byte> body) {
  if (body.size() > max_body_bytes)
    throw Error(EMSGSIZE, {.attempted = fmt::format("send a {} message of {} bytes", name(type), body.size()),
                           .why = fmt::format("the limit is {}", max_body_bytes)});
  Writer out;
  out.bytes(std::as_bytes(std::span(magic)));
  out.u16(protocol_version);
  out.u16(static_cast<std::uint16_t>(type));
  out.u32(static_cast<std::uint32_t>(body.size()));
  out.bytes(body);
  out.u32(crc_of(out.view()));
  return out.take();
}

bool starts_like_a_message(std::span<const std::byte> bytes) noexcept {
  return std::memcmp(bytes.data(), magic.data(), std::min(bytes.size(), magic.size())) == 0;
}

Header decode_header(std::span<const std::byte, header_bytes> bytes) {
  Reader in(bytes, "a message's header");
  if (!starts_like_a_message(bytes)) in.reject("the magic", "it is not Pollen's");
  in.bytes(magic.size(), "the magic");
  Header header{};
  header.version = in.u16("the version");
  header.type = static_cast<MessageType>(in.u16("the type"));
  header.body_bytes = in.u32("the length");
  if (header.body_bytes > max_body_bytes)
    in.reject("the length",
              fmt::format("it says {} bytes, the limit is {}", header.body_bytes, max_body_bytes));
  return header;
}

std::span<const std::byte> checked_body(std::span<const std::byte> frame) {
  Reader in(frame, "a message");
  const std::size_t overhead = header_bytes + trailer_bytes;
  const auto covered = in.bytes(std::max(frame.size(), overhead) - trailer_bytes, "the header");
  if (in.u32("the CRC") != crc_of(covered)) in.reject("the CRC", "the message was damaged on the way");
  return covered.subspan(header_bytes);
}

std::vector<std::byte> encode_refusal(const Refusal& refusal) {
  Writer body;
  body.text(refusal.why, max_reason_bytes, "the reason");
  body.text(refusal.remedy, max_reason_bytes, "the remedy");
  return body.take();
}

Refusal decode_refusal(std::span<const std::byte> body) {
  Reader in(body, "a refusal");
  Refusal refusal;
  refusal.why = in.text(max_reason_bytes, "the reason");
  refusal.remedy = in.text(max_reason_bytes, "the remedy");
  in.finish();
  return refusal;
}

void send_message(Socket& socket, MessageType type, std::span<const std::byte> body,
                  const Deadline& deadline) {
  socket.send_all(encode_message(type, body), deadline);
}

std::vector<std::byte> recv_message(Socket& socket, MessageType type, const Deadline& deadline) {
  std::vector<std::byte> frame(header_bytes);
  recv_part(socket, frame, 0, deadline);
  const Header header =
      or_refuse(socket, [&] { return decode_header(std::span(frame).first<header_bytes>()); });
  const bool is_refusal = header.type == MessageType::refusal;
  or_refuse(socket, [&] {
    if (header.version != protocol_version && !is_refusal) throw other_version(socket, header.version);
  });
  frame.resize(header_bytes + header.body_bytes + trailer_bytes);
  recv_part(socket, frame, header_bytes, deadline);
  if (is_refusal) throw refused(socket, decode_refusal(checked_body(frame)));
  return or_refuse(socket, [&] {
    const auto body = checked_body(frame);
    if (header.type != type) throw unexpected_type(socket, header.type, type);
    return std::vector<std::byte>(body.begin(), body.end());
  });
}

void refuse(Socket& socket, const Refusal& refusal) noexcept {
  try {
    const auto body = encode_refusal({.why = made_plain(refusal.why), .remedy = made_plain(refusal.remedy)});
    send_message(socket, MessageType::refusal, body, Deadline::after(refusal_limit));
    socket.finish(Deadline::after(refusal_limit));
  } catch (const std::exception&) {
    // The peer will see the connection close.
  }
}

Error refused(const Socket& socket, const Refusal& refusal) {
  return Error(
      ECONNABORTED,
      {.attempted = "agree with the peer", .on = on(socket), .why = refusal.why, .remedy = refusal.remedy});
}

}  // namespace pollen::net
