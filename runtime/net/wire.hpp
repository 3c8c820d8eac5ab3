// Fields of the handshake's messages: big-endian numbers, and texts with a 16-bit length before
// them. A Reader takes nothing on trust: each field is checked to be there before it is read, each
// text to be within its limit and plain (UTF-8 without control characters, so that a peer's words
// can be shown on a terminal and put into JSON).
//
// Ownership: a Reader views bytes of the caller's. Errors: pollen::Error, EBADMSG for a Reader,
// EMSGSIZE or EINVAL for a Writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pollen/base/bytes.hpp"

namespace pollen::net {

bool is_plain_text(std::string_view text) noexcept;

class Writer {
 public:
  void u8(std::uint8_t value) { put(value); }
  void u16(std::uint16_t value) { put(big_endian(value)); }
  void u32(std::uint32_t value) { put(big_endian(value)); }
  void u64(std::uint64_t value) { put(big_endian(value)); }
  void bytes(std::span<const std::byte> value);
  void text(std::string_view value, std::size_t limit, std::string_view field);

  std::span<const std::byte> view() const noexcept { return out_; }
  std::vector<std::byte> take() noexcept { return std::move(out_); }

 private:
  template <typename T>
  void put(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }

  std::vector<std::byte> out_;
};

class Reader {
 public:
  // what: names the bytes in errors, "the hello message".
  Reader(std::span<const std::byte> bytes, std::string_view what) : left_(bytes), what_(what) {}

  std::uint8_t u8(std::string_view field) { return get<std::uint8_t>(field); }
  std::uint16_t u16(std::string_view field) { return big_endian(get<std::uint16_t>(field)); }
  std::uint32_t u32(std::string_view field) { return big_endian(get<std::uint32_t>(field)); }
  std::uint64_t u64(std::string_view field) { return big_endian(get<std::uint64_t>(field)); }
  std::span<const std::byte> bytes(std::size_t count, std::string_view field);
  std::string text(std::size_t limit, std::string_view field);

  std::span<const std::byte> rest() const noexcept { return left_; }
  void finish() const;  // there must be nothing left
  [[noreturn]] void reject(std::string_view field, std::string_view why) const;

 private:
  template <typename T>
  T get(std::string_view field);

  std::span<const std::byte> left_;
  std::string what_;
};

}  // namespace pollen::net
