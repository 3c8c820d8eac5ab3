// What --data_validation puts into messages: bytes that follow from a key, so that the receiver knows
// each of them, and no two messages of a QP are alike.
//
// Thread rules: pure functions. Errors: none, noexcept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace pollen::bw {

// Message `sequence` of a QP; `sender` tells the QPs of a test and the two directions apart.
constexpr std::uint64_t pattern_key(std::uint64_t sender, std::uint64_t sequence) noexcept {
  std::uint64_t x = sequence + (sender + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void fill_pattern(std::span<std::byte> message, std::uint64_t key) noexcept;

// The offset of the first byte that differs; nothing if none does.
std::optional<std::size_t> find_damage(std::span<const std::byte> message, std::uint64_t key) noexcept;

}  // namespace pollen::bw
