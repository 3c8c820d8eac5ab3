#include "pollen/memory/memlock.hpp"

#include <doctest/doctest.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "pollen/base/error.hpp"

using pollen::memory::memlock_status;
using pollen::memory::require_memlock;

namespace {

// What require_memlock says in a child with this limit, with or without CAP_IPC_LOCK.
std::string said(rlim_t limit_bytes, bool capability, std::uint64_t planned_bytes) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string out;
    const rlimit limit{limit_bytes, limit_bytes};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) out = "setrlimit failed";
    if (!capability) {
      __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      std::array<__user_cap_data_struct, 2> data{};
      if (::syscall(SYS_capset, &header, data.data()) != 0) out = "capset failed";
    }
    if (out.empty()) {
      try {
        require_memlock(planned_bytes, "4 workers' rings");
        out = "granted";
      } catch (const pollen::Error& error) {
        out = error.what();
      }
    }
    (void)!::write(ends[1], out.data(), out.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::array<char, 1024> text{};
  const ssize_t length = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(length >= 0);
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace

TEST_SUITE("memory.memlock") {
  TEST_CASE("a plan beyond the limit is refused with limit, need and command") {
    CHECK(said(64 << 10, false, 64 << 20) ==
          "cannot pin 64 MiB for 4 workers' rings: RLIMIT_MEMLOCK is 64 KiB and 64 MiB are needed. Raise it: "
          "ulimit -l 65536, or \"memlock 65536\" in /etc/security/limits.conf, or in a container "
          "--ulimit memlock=67108864:67108864 or --cap-add IPC_LOCK");
  }

  TEST_CASE("a plan within the limit is granted, to the last byte") {
    CHECK(said(64 << 10, false, 64 << 10) == "granted");
    CHECK(said(64 << 10, false, (64 << 10) + 1).find("ulimit -l 65,") != std::string::npos);
  }

  TEST_CASE("a plan that no number can hold is refused, not wrapped around") {
    CHECK(said(64 << 10, false, UINT64_MAX).find("cannot pin") == 0);
  }

  TEST_CASE("CAP_IPC_LOCK lifts the limit") {
    if (!memlock_status().privileged) {
      MESSAGE("skipped: this process lacks CAP_IPC_LOCK");
      return;
    }
    CHECK(said(64 << 10, true, 64 << 20) == "granted");
  }

  TEST_CASE("an unlimited process is granted everything") {
    const std::string text = said(RLIM_INFINITY, false, std::uint64_t{1} << 50);
    if (text == "setrlimit failed") {
      MESSAGE("skipped: the hard limit is not unlimited and this process may not raise it");
      return;
    }
    CHECK(text == "granted");
  }

  TEST_CASE("the status is the process's own") {
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    const auto status = memlock_status();
    CHECK(status.limit_bytes.has_value() == (limit.rlim_cur != RLIM_INFINITY));
    if (status.limit_bytes) CHECK(*status.limit_bytes == limit.rlim_cur);
  }
}
