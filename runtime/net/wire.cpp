#include "pollen/net/wire.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "pollen/base/error.hpp"

namespace pollen::net {

namespace {

struct CodePoint {
  std::uint32_t value;
  std::size_t bytes;  // 0: not UTF-8
};

CodePoint first_code_point(std::string_view text) noexcept {
  const auto at = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  constexpr std::array<std::uint32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {0, 0};
  std::uint32_t value = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return {0, 0};
    value = value << 6 | (at(i) & 0x3fU);
  }
  const bool is_surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < least[bytes] || value > 0x10ffff || is_surrogate) return {0, 0};
  return {value, bytes};
}

}  // namespace

bool is_plain_text(std::string_view text) noexcept {
  while (!text.empty()) {
    const auto [value, bytes] = first_code_point(text);
    if (bytes == 0 || value < 0x20 || (value >= 0x7f && value < 0xa0)) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

void Writer::bytes(std::span<const std::byte> value) { out_.insert(out_.end(), value.begin(), value.end()); }

void Writer::text(std::string_view value, std::size_t limit, std::string_view field) {
  limit = std::min<std::size_t>(limit, std::numeric_limits<std::uint16_t>::max());
  if (value.size() > limit)
    throw Error(EMSGSIZE, {.attempted = fmt::format("send {} of {} bytes", field, value.size()),
                           .why = fmt::format("the limit is {}", limit)});
  if (!is_plain_text(value))
    throw Error(EINVAL, {.attempted = fmt::format("send {}", field),
                         .why = "it has control characters or is not UTF-8"});
  u16(static_cast<std::uint16_t>(value.size()));
  bytes(std::as_bytes(std::span(value)));
}

void Reader::reject(std::string_view field, std::string_view why) const {
  throw Error(EBADMSG, {.attempted = fmt::format("read {} in {}", field, what_), .why = std::string(why)});
}

std::span<const std::byte> Reader::bytes(std::size_t count, std::string_view field) {
  if (count > left_.size()) reject(field, fmt::format("it needs {} bytes, {} are left", count, left_.size()));
  const auto value = left_.first(count);
  left_ = left_.subspan(count);
  return value;
}

template <typename T>
T Reader::get(std::string_view field) {
  T value;
  std::memcpy(&value, bytes(sizeof value, field).data(), sizeof value);
  return value;
}
template std::uint8_t Reader::get(std::string_view);
template std::uint16_t Reader::get(std::string_view);
template std::uint32_t Reader::get(std::string_view);
template std::uint64_t Reader::get(std::string_view);

std::string Reader::text(std::size_t limit, std::string_view field) {
  const std::size_t count = u16(field);
  if (count > limit) reject(field, fmt::format("it has {} bytes, the limit is {}", count, limit));
  const auto value = bytes(count, field);
  std::string out(reinterpret_cast<const char*>(value.data()), value.size());
  if (!is_plain_text(out)) reject(field, "it has control characters or is not UTF-8");
  return out;
}

void Reader::finish() const {
  if (!left_.empty()) reject("the end", fmt::format("{} bytes follow it", left_.size()));
}

}  // namespace pollen::net
