#include "pollen/net/wire.hpp"

#include <doctest/doctest.h>

#include <cerrno>

#include "sides.hpp"

namespace pollen::net {

TEST_SUITE("net.wire") {
  TEST_CASE("fields are big-endian and come back as they went") {
    Writer out;
    out.u8(0x01);
    out.u16(0x0203);
    out.u32(0x04050607);
    out.u64(0x08090a0b0c0d0e0f);
    out.text("ab", 10, "x");
    const auto bytes = out.take();
    REQUIRE(bytes.size() == 19);
    for (std::size_t i = 0; i < 15; ++i) CHECK(std::to_integer<std::size_t>(bytes[i]) == i + 1);

    Reader in(bytes, "a test");
    CHECK(in.u8("a") == 0x01);
    CHECK(in.u16("b") == 0x0203);
    CHECK(in.u32("c") == 0x04050607);
    CHECK(in.u64("d") == 0x08090a0b0c0d0e0f);
    CHECK(in.text(2, "e") == "ab");
    in.finish();
  }

  TEST_CASE("a field that is not there is refused by its name") {
    const std::vector<std::byte> three(3);
    Reader in(three, "the hello message");
    const auto error = error_of([&] { in.u32("qpn"); });
    CHECK(has_code(error, EBADMSG));
    CHECK_MESSAGE(says(error, "cannot read qpn in the hello message: it needs 4 bytes, 3 are left"),
                  what(error));
  }

  TEST_CASE("a text longer than its limit, or than what is there, is refused") {
    Writer out;
    out.u16(5);
    out.bytes(bytes_of("four"));
    CHECK(says(error_of([&] { Reader(out.view(), "x").text(4, "name"); }), "5 bytes, the limit is 4"));
    CHECK(says(error_of([&] { Reader(out.view(), "x").text(9, "name"); }), "needs 5 bytes, 4 are left"));
    CHECK(has_code(error_of([&] { Writer().text("12345", 4, "name"); }), EMSGSIZE));
  }

  TEST_CASE("texts are UTF-8 without control characters, on the way out and in") {
    for (const char* good : {"", "rdma_bw", "4 µs × 2", "日本", "\xf4\x8f\xbf\xbf", "\xc2\xa0"})
      CHECK(is_plain_text(good));
    for (const char* bad : {"\x1b[2J", "a\nb", "\x7f", "\xc2\x9b", "\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf",
                            "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "\xe2\x82"})
      CHECK_FALSE(is_plain_text(bad));
    CHECK(has_code(error_of([] { Writer().text("\x1b[2J", 10, "name"); }), EINVAL));
    Writer out;
    out.u16(1);
    out.u8(0x1b);
    CHECK(says(error_of([&] { Reader(out.view(), "x").text(10, "name"); }), "control characters"));
  }

  TEST_CASE("bytes after the last field are refused") {
    const std::vector<std::byte> three(3);
    Reader in(three, "a test");
    in.u16("a");
    CHECK(says(error_of([&] { in.finish(); }), "1 bytes follow"));
  }
}

}  // namespace pollen::net
