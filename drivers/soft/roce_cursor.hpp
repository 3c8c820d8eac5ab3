// Big-endian numbers and bytes, written and read in order. Neither knows where its bytes end: the
// caller has checked that there are enough.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "pollen/base/bytes.hpp"

namespace pollen::soft {

class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> out) noexcept : at_(out.data()) {}

  template <std::unsigned_integral T>
  void put(T value) noexcept {
    value = big_endian(value);
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  void put(std::uint8_t value) noexcept { *at_++ = std::byte{value}; }
  void put(std::span<const std::uint8_t> bytes) noexcept { append(bytes.data(), bytes.size()); }
  void put(std::span<const std::byte> bytes) noexcept { append(bytes.data(), bytes.size()); }

 private:
  void append(const void* bytes, std::size_t size) noexcept {
    if (size != 0) std::memcpy(at_, bytes, size);
    at_ += size;
  }

  std::byte* at_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : at_(bytes.data()) {}

  template <std::unsigned_integral T>
  T get() noexcept {
    T value;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    if constexpr (sizeof value == 1)
      return value;
    else
      return big_endian(value);
  }
  void get(std::span<std::uint8_t> bytes) noexcept {
    std::memcpy(bytes.data(), at_, bytes.size());
    at_ += bytes.size();
  }
  void skip(std::size_t bytes) noexcept { at_ += bytes; }

 private:
  const std::byte* at_;
};

}  // namespace pollen::soft
