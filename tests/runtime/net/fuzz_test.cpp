// The fuzzer's entry on bytes that are nearly right: each valid input with a few bytes changed, cut
// or repeated. It aborts on what must not be.
#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "pollen/net/endpoint.hpp"
#include "pollen/net/hello.hpp"
#include "pollen/net/message.hpp"
#include "sides.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace pollen::net {

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes input(std::uint8_t part, std::span<const std::byte> bytes) {
  Bytes out{part};
  for (const std::byte byte : bytes) out.push_back(std::to_integer<std::uint8_t>(byte));
  return out;
}

std::vector<Bytes> seeds() {
  const Hello hello{
      .program = "rdma_bw",
      .release = "0.1.0",
      .device = "soft0",
      .parameters = {
          {"bytes", Rule::equal, "64"}, {"mtu", Rule::smaller, "4096"}, {"gid", Rule::common, "a,b"}}};
  const std::vector<QpEndpoint> endpoints(2);
  return {input(0, encode_message(MessageType::hello, encode_hello(hello))), input(1, encode_hello(hello)),
          input(2, encode_endpoints(endpoints)), input(3, encode_refusal({.why = "no", .remedy = "Yes"})),
          input(4, bytes_of("[fe80::1%eth0]:18515"))};
}

Bytes mutated(Bytes bytes, std::mt19937& random) {
  const auto below = [&random](std::size_t limit) { return random() % limit; };
  for (std::size_t change = 0; change <= below(4); ++change) {
    if (bytes.size() < 2) break;
    const std::size_t at = 1 + below(bytes.size() - 1);
    switch (below(5)) {
      case 0:
        bytes[at] = static_cast<std::uint8_t>(random());
        break;
      case 1:
        bytes[at] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes[at]);
        break;
      case 4:
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
        break;
    }
  }
  return bytes;
}

}  // namespace

TEST_SUITE("net.fuzz") {
  TEST_CASE("bytes that are nearly right are taken or refused, and nothing else") {
    std::mt19937 random(7);
    for (const Bytes& seed : seeds()) {
      CHECK(LLVMFuzzerTestOneInput(seed.data(), seed.size()) == 0);
      for (int i = 0; i < 5000; ++i) {
        const Bytes bytes = mutated(seed, random);
        CHECK(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()) == 0);
      }
    }
  }
}

}  // namespace pollen::net
