#include "pattern.hpp"

#include <bit>
#include <cstring>

namespace pollen::bw {

namespace {

constexpr std::uint64_t step = 0x9e3779b97f4a7c15;

std::uint64_t word_at(std::uint64_t key, std::size_t index) noexcept { return key + index * step; }

}  // namespace

void fill_pattern(std::span<std::byte> message, std::uint64_t key) noexcept {
  const std::size_t words = message.size() / sizeof(std::uint64_t);
  std::byte* to = message.data();
  for (std::size_t i = 0; i < words; ++i) {
    const std::uint64_t word = word_at(key, i);
    std::memcpy(to + i * sizeof word, &word, sizeof word);
  }
  const std::uint64_t last = word_at(key, words);
  std::memcpy(to + words * sizeof last, &last, message.size() % sizeof last);
}

std::optional<std::size_t> find_damage(std::span<const std::byte> message, std::uint64_t key) noexcept {
  const std::size_t words = message.size() / sizeof(std::uint64_t);
  const std::byte* from = message.data();
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, from + i * sizeof word, sizeof word);
    if (const std::uint64_t difference = word ^ word_at(key, i); difference != 0) {
      const auto bits = std::endian::native == std::endian::little ? std::countr_zero(difference)
                                                                   : std::countl_zero(difference);
      return i * sizeof word + static_cast<std::size_t>(bits) / 8;
    }
  }
  const std::uint64_t last = word_at(key, words);
  const auto* expected = reinterpret_cast<const std::byte*>(&last);
  for (std::size_t i = 0; i < message.size() % sizeof last; ++i)
    if (from[words * sizeof last + i] != expected[i]) return words * sizeof last + i;
  return std::nullopt;
}

}  // namespace pollen::bw
