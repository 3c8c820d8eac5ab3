#include "pollen/memory/copy.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace {

// Memory with a page behind it (and one before it) that can't be touched.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    inner_ = (bytes + page_ - 1) / page_ * page_;
    void* mapped = ::mmap(nullptr, inner_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    outer_ = static_cast<std::byte*>(mapped);
    REQUIRE(::mprotect(outer_ + page_, inner_, PROT_READ | PROT_WRITE) == 0);
  }
  ~Guarded() { ::munmap(outer_, inner_ + 2 * page_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* begin() const { return outer_ + page_; }
  std::byte* end() const { return begin() + inner_; }  // the first byte that can't be touched

 private:
  std::size_t page_;
  std::size_t inner_ = 0;
  std::byte* outer_ = nullptr;
};

constexpr std::size_t largest = 4200;

void fill(std::byte* to, std::size_t bytes, unsigned seed) {
  std::minstd_rand random(seed);
  for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(random() >> 7);
}

}  // namespace

TEST_SUITE("memory.copy") {
  TEST_CASE("every engine copies what memcpy copies, for every size and alignment, and nothing around it") {
    const Guarded source(largest + 128);
    const Guarded target(largest + 128);
    fill(source.begin(), static_cast<std::size_t>(source.end() - source.begin()), 1);
    constexpr auto canary = std::byte{0xa5};
    for (const auto& engine : pollen::memory::copy_engines()) {
      CAPTURE(engine.name);
      std::minstd_rand random(7);
      for (std::size_t bytes = 0; bytes <= largest; ++bytes) {
        for (int sample = 0; sample < 4; ++sample) {
          const std::byte* from = source.begin() + random() % 64;
          std::byte* to = target.begin() + 64 + random() % 64;
          std::memset(to - 64, static_cast<int>(canary), 64);
          std::memset(to + bytes, static_cast<int>(canary),
                      std::min<std::size_t>(64, static_cast<std::size_t>(target.end() - to) - bytes));
          engine.function(to, from, bytes);
          const bool same = std::memcmp(to, from, bytes) == 0;
          bool around = true;
          for (std::size_t i = 1; i <= 64; ++i)
            around = around && to[-static_cast<std::ptrdiff_t>(i)] == canary;
          for (std::size_t i = 0; i < 64 && to + bytes + i < target.end(); ++i)
            around = around && to[bytes + i] == canary;
          if (!same || !around) {
            CAPTURE(bytes);
            REQUIRE(same);
            REQUIRE(around);
          }
        }
      }
    }
  }

  TEST_CASE("nothing is touched before the first or behind the last byte of source and destination") {
    const Guarded source(largest);
    const Guarded target(largest);
    fill(source.begin(), static_cast<std::size_t>(source.end() - source.begin()), 2);
    for (const auto& engine : pollen::memory::copy_engines()) {
      CAPTURE(engine.name);
      for (std::size_t bytes = 0; bytes <= largest; ++bytes) {
        engine.function(target.end() - bytes, source.end() - bytes, bytes);
        if (std::memcmp(target.end() - bytes, source.end() - bytes, bytes) != 0) REQUIRE(bytes == SIZE_MAX);
        engine.function(target.begin(), source.begin(), bytes);
        if (std::memcmp(target.begin(), source.begin(), bytes) != 0) REQUIRE(bytes == SIZE_MAX);
        // Ends aligned differently on the two sides.
        engine.function(target.begin(), source.end() - bytes, bytes);
        engine.function(target.end() - bytes, source.begin(), bytes);
      }
      CHECK(std::memcmp(target.end() - largest, source.begin(), largest) == 0);
    }
  }

  TEST_CASE("large and odd sizes are right") {
    for (const std::size_t bytes : {std::size_t{65536}, std::size_t{65537}, std::size_t{1000003}}) {
      std::vector<std::byte> from(bytes + 3);
      std::vector<std::byte> to(bytes + 5);
      fill(from.data(), from.size(), 3);
      pollen::memory::copy(to.data() + 5, from.data() + 3, bytes);
      CHECK(std::memcmp(to.data() + 5, from.data() + 3, bytes) == 0);
    }
  }

  TEST_CASE("an empty copy takes null pointers") {
    pollen::memory::copy(nullptr, nullptr, 0);
    CHECK(pollen::memory::copy_engine_name() == pollen::memory::copy_engines().front().name);
  }

  TEST_CASE("copy uses the best engine that the CPU has") {
    const bool best =
        pollen::memory::detail::copy_function == pollen::memory::copy_engines().front().function;
    CHECK(best);
  }
}
