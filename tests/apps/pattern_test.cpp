#include "pattern.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace pollen::bw;

TEST_CASE("A pattern is found intact at every size") {
  for (std::size_t size : {1UL, 2UL, 7UL, 8UL, 9UL, 63UL, 64UL, 65UL, 4096UL, 5000UL}) {
    std::vector<std::byte> message(size);
    fill_pattern(message, pattern_key(3, 17));
    CHECK_FALSE(find_damage(message, pattern_key(3, 17)));
  }
}

TEST_CASE("Each damaged byte is found where it is") {
  for (std::size_t size : {1UL, 7UL, 8UL, 20UL, 65UL}) {
    std::vector<std::byte> message(size);
    const std::uint64_t key = pattern_key(0, 5);
    fill_pattern(message, key);
    for (std::size_t at = 0; at < size; ++at) {
      message[at] ^= std::byte{0x10};
      CHECK(find_damage(message, key) == at);
      message[at] ^= std::byte{0x10};
    }
  }
}

TEST_CASE("Another message's bytes, another sender's and zeros are damage") {
  std::vector<std::byte> message(64);
  CHECK(find_damage(message, pattern_key(1, 1)));
  fill_pattern(message, pattern_key(1, 1));
  CHECK(find_damage(message, pattern_key(1, 2)));
  CHECK(find_damage(message, pattern_key(2, 1)));
}
