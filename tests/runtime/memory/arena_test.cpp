#include "pollen/memory/arena.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "pollen/base/error.hpp"

using pollen::Error;
using pollen::memory::Arena;
using pollen::memory::ArenaOptions;
using pollen::memory::PageKind;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string error_of(const ArenaOptions& options) {
  try {
    const Arena arena(options);
    return "no error";
  } catch (const Error& error) {
    return error.what();
  }
}

// Reserves hugepages for one test and gives them back.
class ReservedPages {
 public:
  ReservedPages(std::string size, int wanted)
      : file_("/sys/kernel/mm/hugepages/hugepages-" + size + "/nr_hugepages") {
    std::ifstream(file_) >> before_;
    std::ofstream(file_) << before_ + wanted << std::flush;
    int now = 0;
    std::ifstream(file_) >> now;
    obtained_ = now - before_ >= wanted;
  }
  ~ReservedPages() { std::ofstream(file_) << before_; }
  ReservedPages(const ReservedPages&) = delete;
  ReservedPages& operator=(const ReservedPages&) = delete;

  bool obtained() const { return obtained_; }

 private:
  std::string file_;
  int before_ = 0;
  bool obtained_ = false;
};

int free_pages(const std::string& size) {
  int count = 0;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-" + size + "/free_hugepages") >> count;
  return count;
}

}  // namespace

TEST_SUITE("memory.arena") {
  TEST_CASE("an arena is page-aligned zeroed memory of at least the size asked for") {
    const Arena arena({.bytes = 3 * mib + 1, .largest = PageKind::plain});
    const std::size_t page = page_bytes(PageKind::plain);
    CHECK(arena.size_bytes() == 3 * mib + page);
    CHECK(std::bit_cast<std::uintptr_t>(arena.base()) % page == 0);
    CHECK(arena.page_kind() == PageKind::plain);
    for (std::size_t i = 0; i < arena.size_bytes(); i += 509) REQUIRE(arena.base()[i] == std::byte{0});
    CHECK(contains(arena.report(), "3.0 MiB on any node in plain "));
  }

  TEST_CASE("every page is there from the start") {
    const Arena arena({.bytes = 2 * mib, .largest = PageKind::plain});
    const std::size_t pages = arena.size_bytes() / page_bytes(PageKind::plain);
    std::vector<unsigned char> resident(pages);
    REQUIRE(::mincore(arena.base(), arena.size_bytes(), resident.data()) == 0);
    for (std::size_t i = 0; i < pages; ++i) REQUIRE((resident[i] & 1) == 1);
  }

  TEST_CASE("another process maps the same pages through /proc, and a child doesn't inherit them") {
    const Arena arena({.bytes = mib, .largest = PageKind::plain});
    const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(arena.fd());
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      if (::msync(arena.base(), 4096, MS_ASYNC) == 0 || errno != ENOMEM) ::_exit(1);
      const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (fd < 0) ::_exit(2);
      void* there = ::mmap(nullptr, arena.size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (there == MAP_FAILED) ::_exit(3);
      static_cast<char*>(there)[4321] = 'x';
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(arena.base()[4321] == std::byte{'x'});
  }

  TEST_CASE("whoever maps the file can't shrink it under its owner") {
    const Arena arena({.bytes = mib, .largest = PageKind::plain});
    CHECK(::ftruncate(arena.fd(), 0) == -1);
    CHECK(errno == EPERM);
    CHECK((::fcntl(arena.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  }

  TEST_CASE("memory is bound to the node asked for") {
    if (::get_mempolicy(nullptr, nullptr, 0, nullptr, 0) != 0) {
      MESSAGE("skipped: this kernel has no NUMA support");
      return;
    }
    const Arena arena({.bytes = mib, .node = 0, .largest = PageKind::plain});
    if (arena.node() == pollen::memory::any_node) {
      MESSAGE("skipped: " << arena.report());
      return;
    }
    int node = -1;
    REQUIRE(::get_mempolicy(&node, nullptr, 0, arena.base() + mib / 2, MPOL_F_NODE | MPOL_F_ADDR) == 0);
    CHECK(node == 0);
    int policy = -1;
    REQUIRE(::get_mempolicy(&policy, nullptr, 0, arena.base(), MPOL_F_ADDR) == 0);
    CHECK(policy == MPOL_BIND);
    CHECK(contains(arena.report(), "on node 0"));
  }

  TEST_CASE("a small request takes no hugepage, and the report says why") {
    const Arena arena({.bytes = 64 * 1024});
    CHECK(arena.page_kind() == PageKind::plain);
    CHECK(arena.size_bytes() == 64 * 1024);
    CHECK(contains(arena.report(), "2 MiB hugepages are larger than twice the request"));
  }

  TEST_CASE("without hugepages the report says how many are free, how many are needed and how to get them") {
    if (free_pages("2048kB") != 0) {
      MESSAGE("skipped: this machine has free 2 MiB hugepages");
      return;
    }
    const Arena arena({.bytes = 4 * mib, .largest = PageKind::huge_2m});
    CHECK(arena.page_kind() >= PageKind::transparent);
    CHECK(arena.size_bytes() == 4 * mib);
    CHECK(contains(arena.report(), "2 MiB hugepages free on any node (0 of "));
    CHECK(contains(arena.report(), ", 2 needed; echo "));
    CHECK(contains(arena.report(), "nr_hugepages)"));
  }

  TEST_CASE("4 MiB are never rounded up to a 1 GiB page") {
    const Arena arena({.bytes = 4 * mib});
    CHECK(arena.size_bytes() == 4 * mib);
    CHECK(contains(arena.report(), "1 GiB hugepages would waste 1020 MiB"));
  }

  TEST_CASE("free 2 MiB hugepages are used and given back") {
    const ReservedPages pages("2048kB", 4);
    if (!pages.obtained()) {
      MESSAGE("skipped: can't reserve 2 MiB hugepages (needs root and free memory)");
      return;
    }
    const int free_before = free_pages("2048kB");
    {
      const Arena arena({.bytes = 7 * mib, .node = 0});
      CHECK_MESSAGE(arena.page_kind() == PageKind::huge_2m, arena.report());
      CHECK(arena.size_bytes() == 8 * mib);
      CHECK(std::bit_cast<std::uintptr_t>(arena.base()) % (2 * mib) == 0);
      CHECK(free_pages("2048kB") == free_before - 4);
      arena.base()[8 * mib - 1] = std::byte{1};
    }
    CHECK(free_pages("2048kB") == free_before);
  }

  TEST_CASE("a free 1 GiB hugepage is used where the request warrants it") {
    const ReservedPages pages("1048576kB", 1);
    if (!pages.obtained()) {
      MESSAGE("skipped: can't reserve a 1 GiB hugepage (needs root and unfragmented memory)");
      return;
    }
    const Arena arena({.bytes = 1000 * mib});
    CHECK_MESSAGE(arena.page_kind() == PageKind::huge_1g, arena.report());
    CHECK(arena.size_bytes() == 1024 * mib);
  }

  TEST_CASE("transparent hugepages are used where the kernel gives them") {
    const Arena arena({.bytes = 8 * mib, .largest = PageKind::transparent});
    if (arena.page_kind() == PageKind::plain) {
      CHECK(contains(arena.report(), "transparent hugepages"));
      MESSAGE("no transparent hugepages here: " << arena.report());
      return;
    }
    CHECK(arena.page_kind() == PageKind::transparent);
    CHECK(contains(arena.report(), "in transparent 2 MiB hugepages"));
  }

  TEST_CASE("hugepages that are demanded and not there are an error with the way out") {
    if (free_pages("2048kB") != 0) {
      MESSAGE("skipped: this machine has free 2 MiB hugepages");
      return;
    }
    const std::string error = error_of({.bytes = 4 * mib, .name = "receive", .smallest = PageKind::huge_2m});
    CHECK(contains(error, "cannot make arena receive of 4 MiB"));
    CHECK(contains(error, "no 2 MiB hugepages free"));
    CHECK(contains(error, "Reserve hugepages"));
  }

  TEST_CASE("more memory than there is, is refused before the kernel kills anybody") {
    const std::string error = error_of({.bytes = std::size_t{1} << 46, .largest = PageKind::plain});
    CHECK(contains(error, "of 64 TiB"));
    CHECK(contains(error, "of memory are available"));
  }

  TEST_CASE("requests that make no sense are refused by name") {
    CHECK(contains(error_of({.bytes = 0}), "at least one byte"));
    CHECK(contains(error_of({.bytes = SIZE_MAX}), "overflows"));
    CHECK(contains(error_of({.bytes = 1, .node = 4096}), "no such NUMA node"));
    CHECK(contains(error_of({.bytes = 1, .node = -2}), "a NUMA node is a number"));
    CHECK(contains(error_of({.bytes = 1, .largest = PageKind::plain, .smallest = PageKind::huge_2m}),
                   "is smaller than the smallest"));
  }

  TEST_CASE("allocations are aligned, disjoint and end where the arena ends") {
    Arena arena({.bytes = 8192, .largest = PageKind::plain});
    const auto a = arena.allocate(100);
    const auto b = arena.allocate(1, 1);
    const auto c = arena.allocate(10, 256);
    CHECK(a.data() == arena.base());
    CHECK(b.data() == a.data() + 100);
    CHECK(std::bit_cast<std::uintptr_t>(c.data()) % 256 == 0);
    CHECK(c.data() >= b.data() + 1);
    CHECK(arena.used_bytes() == 266);
    CHECK(arena.contains(c.data()));
    CHECK_FALSE(arena.contains(arena.base() + arena.size_bytes()));

    const auto rest = arena.allocate(arena.free_bytes(), 1);
    CHECK(rest.data() + rest.size() == arena.base() + arena.size_bytes());
    CHECK_THROWS_WITH_AS(
        arena.allocate(1, 1),
        doctest::Contains("cannot take 1 byte aligned to 1 from an arena of 8 KiB: 0 bytes are left"), Error);
    CHECK_THROWS_AS(arena.allocate(SIZE_MAX, 64), Error);
    CHECK_THROWS_WITH_AS(arena.allocate(1, 3), doctest::Contains("a power of two"), Error);
  }

  TEST_CASE("a moved arena keeps its memory and its allocations") {
    Arena first({.bytes = 8192, .largest = PageKind::plain});
    first.allocate(64);
    std::byte* base = first.base();
    base[7] = std::byte{7};
    Arena second(std::move(first));
    CHECK(second.base() == base);
    CHECK(second.used_bytes() == 64);
    Arena third({.bytes = 4096, .largest = PageKind::plain});
    third = std::move(second);
    CHECK(third.base()[7] == std::byte{7});
    CHECK(third.size_bytes() == 8192);
  }

  TEST_CASE("sizes are written as people read them") {
    using pollen::memory::size_text;
    CHECK(size_text(0) == "0 bytes");
    CHECK(size_text(1) == "1 byte");
    CHECK(size_text(1023) == "1023 bytes");
    CHECK(size_text(64 << 10) == "64 KiB");
    CHECK(size_text(3 << 19) == "1.5 MiB");
    CHECK(size_text(std::uint64_t{1} << 42) == "4 TiB");
  }
}
