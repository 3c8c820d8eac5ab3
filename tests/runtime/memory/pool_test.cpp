#include "pollen/memory/pool.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <set>

#include "pollen/base/error.hpp"

using pollen::memory::Arena;
using pollen::memory::BufferPool;
using pollen::memory::PageKind;

namespace {

struct alignas(64) Memory {
  std::array<std::byte, 1024> bytes{};
};

// The signal that ends a child in which body runs; 0 when it returns.
template <class Body>
int signal_of(Body body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    (void)::close(STDERR_FILENO);
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_SUITE("memory.pool") {
  TEST_CASE("a pool hands out every buffer once, aligned and disjoint, and then nullptr") {
    Arena arena({.bytes = 64 * 1024, .largest = PageKind::plain});
    BufferPool pool(arena, 100, 16);
    CHECK(pool.count() == 16);
    CHECK(pool.buffer_bytes() == 100);
    CHECK(arena.used_bytes() == 16 * 128);
    std::set<std::byte*> seen;
    for (int i = 0; i < 16; ++i) {
      std::byte* buffer = pool.take();
      REQUIRE(buffer != nullptr);
      CHECK(pool.owns(buffer));
      CHECK(pool.at(pool.index_of(buffer)) == buffer);
      CHECK((buffer - arena.base()) % 128 == 0);
      CHECK(arena.contains(buffer + 99));
      CHECK(seen.insert(buffer).second);
    }
    CHECK(pool.take() == nullptr);
    CHECK(pool.free_count() == 0);
  }

  TEST_CASE("the buffer put last is taken first") {
    Memory memory;
    BufferPool pool(memory.bytes, 64);
    CHECK(pool.count() == 16);
    CHECK(pool.take() == memory.bytes.data());
    std::byte* second = pool.take();
    std::byte* third = pool.take();
    pool.put(second);
    pool.put(third);
    CHECK(pool.take() == third);
    CHECK(pool.take() == second);
    CHECK(pool.free_count() == 13);
  }

  TEST_CASE("only the first byte of a buffer belongs to a pool") {
    Memory memory;
    BufferPool pool(std::span(memory.bytes).subspan(64, 300), 64);
    CHECK(pool.count() == 4);
    CHECK(pool.owns(memory.bytes.data() + 256));
    CHECK_FALSE(pool.owns(memory.bytes.data() + 257));
    CHECK_FALSE(pool.owns(memory.bytes.data() + 320));
    CHECK_FALSE(pool.owns(memory.bytes.data()));
  }

  TEST_CASE("a foreign and a double put stop a debug build") {
#ifdef NDEBUG
    MESSAGE("skipped: built with NDEBUG");
#else
    Memory memory;
    Memory other;
    BufferPool pool(memory.bytes, 64);
    std::byte* buffer = pool.take();
    CHECK(signal_of([&] { pool.put(buffer); }) == 0);
    CHECK(signal_of([&] { pool.put(other.bytes.data()); }) == SIGABRT);
    CHECK(signal_of([&] { pool.put(buffer + 1); }) == SIGABRT);
    CHECK(signal_of([&] {
            pool.put(buffer);
            pool.put(buffer);
          }) == SIGABRT);
#endif
  }

  TEST_CASE("pools that can't be made are refused in words") {
    Memory memory;
    const std::span<std::byte> span = memory.bytes;
    CHECK_THROWS_WITH_AS(BufferPool(span, 0), doctest::Contains("at least one byte"), pollen::Error);
    CHECK_THROWS_WITH_AS(BufferPool(span, 64, 48), doctest::Contains("power of two"), pollen::Error);
    CHECK_THROWS_WITH_AS(BufferPool(span, 2048), doctest::Contains("not one buffer fits"), pollen::Error);
    CHECK_THROWS_WITH_AS(BufferPool(span, SIZE_MAX), doctest::Contains("overflows"), pollen::Error);
    CHECK_THROWS_WITH_AS(BufferPool(span.subspan(1), 64), doctest::Contains("not aligned"), pollen::Error);
    Arena arena({.bytes = 4096, .largest = PageKind::plain});
    CHECK_THROWS_WITH_AS(BufferPool(arena, 64, 1000), doctest::Contains("from an arena of 4 KiB"),
                         pollen::Error);
    CHECK_THROWS_WITH_AS(BufferPool(arena, 64, SIZE_MAX / 2), doctest::Contains("overflows"), pollen::Error);
  }
}
