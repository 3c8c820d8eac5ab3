#include "numbers.hpp"

#include <doctest/doctest.h>

#include "pollen/base/error.hpp"

using namespace pollen;
using bw::parse_rate;
using bw::parse_size;
using bw::parse_whole;

TEST_CASE("Sizes take K, M and G as powers of 1024") {
  CHECK(parse_size("0") == 0);
  CHECK(parse_size("4096") == 4096);
  CHECK(parse_size("64K") == 65536);
  CHECK(parse_size("1m") == 1048576);
  CHECK(parse_size("3G") == 3221225472);
}

TEST_CASE("What is no size is refused") {
  for (const char* text :
       {"", "K", "-1", "1.5K", "64KB", " 1", "0x10", "99999999999999999999", "18446744073709551615K"})
    CHECK_THROWS_AS(parse_size(text), Error);
}

TEST_CASE("A count has no unit") {
  CHECK(parse_whole("1000") == 1000);
  for (const char* text : {"", "1K", "-1", "1e3"}) CHECK_THROWS_AS(parse_whole(text), Error);
}

TEST_CASE("Rates tell bits from bytes, 1000 from 1024, and bytes from messages") {
  CHECK(parse_rate("10Gb/s").per_second == doctest::Approx(10e9));
  CHECK(parse_rate("10 Gbps").per_second == doctest::Approx(10e9));
  CHECK(parse_rate("1GB/s").per_second == doctest::Approx(8e9));
  CHECK(parse_rate("1MiB/s").per_second == doctest::Approx(8388608));
  CHECK(parse_rate("1KiB/s").per_second == doctest::Approx(8192));
  CHECK_FALSE(parse_rate("1MiB/s").of_messages);
  CHECK(parse_rate("2.5M/s").of_messages);
  CHECK(parse_rate("2.5M/s").per_second == doctest::Approx(2.5e6));
  CHECK(parse_rate("100/s").per_second == doctest::Approx(100));
}

TEST_CASE("A rate without a unit, below 0 or of a unit that is none is refused") {
  for (const char* text : {"", "10", "10G", "10Gb", "10B", "-1Gb/s", "nan Gb/s", "inf/s", "1Tb/s"})
    CHECK_THROWS_AS(parse_rate(text), Error);
}
