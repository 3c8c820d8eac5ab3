// Everything of the handshake that takes bytes from a stranger. The first byte says which part gets
// the rest, so that no CRC stands before the parts behind it. A part must take the bytes or throw
// Error, and what it takes it must write back as the same bytes.
//
// With libFuzzer (the suites run it on bytes of their own):
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/handshake_fuzz.cpp
//     runtime/net/*.cpp runtime/base/*.cpp drivers/driver.cpp -lfmt -lz -o handshake_fuzz
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "pollen/base/error.hpp"
#include "pollen/net/address.hpp"
#include "pollen/net/endpoint.hpp"
#include "pollen/net/hello.hpp"
#include "pollen/net/message.hpp"

namespace {

using namespace pollen::net;
using Bytes = std::span<const std::byte>;

void must(bool holds) {
  if (!holds) std::abort();
}

void take_frame(Bytes bytes) {
  if (bytes.size() < header_bytes) return;
  const Header header = decode_header(bytes.first<header_bytes>());
  must(header.body_bytes <= max_body_bytes);
  if (bytes.size() != header_bytes + header.body_bytes + trailer_bytes) return;
  const Bytes body = checked_body(bytes);
  if (header.version == protocol_version) must(std::ranges::equal(encode_message(header.type, body), bytes));
}

void take_hello(Bytes bytes) {
  const Hello hello = decode_hello(bytes);
  must(std::ranges::equal(encode_hello(hello), bytes));
  // Whatever a stranger says, settling with it ends in words.
  Hello mine = hello;
  std::ranges::reverse(mine.parameters);
  for (Parameter& parameter : mine.parameters) parameter.value += "0";
  settle(hello, mine, Role::server);
}

void take_address(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Address address = parse_address(text);
  must(parse_address(to_string(address)) == address);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Bytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  try {
    switch (data[0] % 5) {
      case 0:
        take_frame(bytes);
        break;
      case 1:
        take_hello(bytes);
        break;
      case 2:
        must(std::ranges::equal(encode_endpoints(decode_endpoints(bytes)), bytes));
        break;
      case 3:
        must(std::ranges::equal(encode_refusal(decode_refusal(bytes)), bytes));
        break;
      case 4:
        take_address(bytes);
        break;
    }
  } catch (const pollen::Error& error) {
    must(!error.text().why.empty());
  }
  return 0;
}
