#include "pollen/lcore/lock.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "child.hpp"
#include "expect.hpp"
#include "machine_tree.hpp"

using namespace pollen::lcore;
namespace fs = std::filesystem;

namespace {

// Holds the lock until it is killed.
int hold(unsigned cpu, const fs::path& directory, const Child::Say& say) {
  const LcoreLock lock(cpu, directory);
  say("held");
  for (;;) pause();
}

std::string lock_error(unsigned cpu, const fs::path& directory) {
  return error_of([&] { LcoreLock(cpu, directory); });
}

}  // namespace

TEST_SUITE("lcore.lock") {
  TEST_CASE(
      "an lcore that another process holds is refused with its pid and name, and is free once it is killed") {
    const TempDirectory directory;
    Child holder([&](const Child::Say& say) { return hold(3, directory.path(), say); });
    REQUIRE(holder.hear() == "held");
    CHECK(lock_error(3, directory.path()) ==
          fmt::format(
              "cannot take lcore 3: it is in use by pid {} ({}). Choose other cores with --lcores, or stop "
              "that process",
              holder.pid(), program_invocation_short_name));
    CHECK(held_lcores(directory.path()) == CpuSet{3});
    CHECK_NOTHROW(LcoreLock(4, directory.path()));

    holder.kill(SIGKILL);
    CHECK(holder.finish() == 128 + SIGKILL);
    CHECK(fs::exists(directory.path() / "lcore-3.lock"));
    CHECK(held_lcores(directory.path()).empty());
    const LcoreLock taken_over(3, directory.path());
    std::ifstream file(directory.path() / "lcore-3.lock");
    pid_t pid = 0;
    file >> pid;
    CHECK(pid == getpid());
  }

  TEST_CASE("a released lock leaves no file and can be taken again") {
    const TempDirectory directory;
    for (int round = 0; round < 3; ++round) {
      const LcoreLock lock(5, directory.path());
      CHECK(held_lcores(directory.path()) == CpuSet{5});
    }
    CHECK(fs::is_empty(directory.path()));
  }

  TEST_CASE("the same process cannot take an lcore twice") {
    const TempDirectory directory;
    const LcoreLock lock(6, directory.path());
    CHECK(has(lock_error(6, directory.path()), fmt::format("it is in use by pid {}", getpid())));
  }

  TEST_CASE("a moved lock stays held until its last owner goes") {
    const TempDirectory directory;
    std::optional<LcoreLock> outer;
    {
      LcoreLock inner(7, directory.path());
      outer.emplace(std::move(inner));
    }
    CHECK(held_lcores(directory.path()) == CpuSet{7});
    *outer = LcoreLock(8, directory.path());
    CHECK(held_lcores(directory.path()) == CpuSet{8});
    outer.reset();
    CHECK(held_lcores(directory.path()).empty());
  }

  TEST_CASE("a forked child that drops its copy leaves the parent's lock alone") {
    const TempDirectory directory;
    std::optional<LcoreLock> lock(std::in_place, 9U, directory.path());
    Child child([&](const Child::Say&) {
      lock.reset();
      return 0;
    });
    CHECK(child.finish() == 0);
    CHECK(held_lcores(directory.path()) == CpuSet{9});
    CHECK(fs::exists(directory.path() / "lcore-9.lock"));
  }

  TEST_CASE("what a crash or a stranger left in a lock file does not matter") {
    const TempDirectory directory;
    std::ofstream(directory.path() / "lcore-2.lock") << std::string(4096, 'x');
    std::ofstream(directory.path() / "lcore-nonsense.lock") << "1 a\n";
    std::ofstream(directory.path() / "lcore-.lock") << "1 a\n";
    CHECK(held_lcores(directory.path()).empty());
    CHECK_NOTHROW(LcoreLock(2, directory.path()));
  }

  TEST_CASE("a lock file is not written through a link") {
    const TempDirectory directory;
    const fs::path target = directory.path() / "precious";
    std::ofstream(target) << "untouched";
    fs::create_symlink(target, directory.path() / "lcore-1.lock");
    CHECK(has(lock_error(1, directory.path()), "cannot open the lock file"));
    std::string text;
    std::ifstream(target) >> text;
    CHECK(text == "untouched");
  }

  TEST_CASE("the directory is made for its owner alone, and one that others may write to is refused") {
    const TempDirectory parent;
    const fs::path directory = parent.path() / "locks";
    { const LcoreLock lock(0, directory); }
    struct stat status {};
    REQUIRE(stat(directory.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);

    REQUIRE(chmod(directory.c_str(), 0777) == 0);
    CHECK(has(lock_error(0, directory), "others may write to it (mode 777)"));
    std::ofstream(parent.path() / "file") << "";
    CHECK(has(lock_error(0, parent.path() / "file"), "it is no directory"));
    fs::create_symlink(directory, parent.path() / "link");
    CHECK(has(lock_error(0, parent.path() / "link"), "it is no directory"));
    CHECK(has(lock_error(0, parent.path() / "missing" / "locks"), "cannot create the lock directory"));
  }

  TEST_CASE("a directory of another user is refused") {
    if (geteuid() != 0) {
      MESSAGE("skipped: only root can give a directory away");
      return;
    }
    const TempDirectory directory;
    REQUIRE(chown(directory.path().c_str(), 65534, 65534) == 0);
    CHECK(has(lock_error(0, directory.path()), "it belongs to user 65534 and not to 0"));
  }

  TEST_CASE("root's locks are in /run/pollen, others' in their runtime directory or /tmp") {
    if (geteuid() != 0) {
      MESSAGE("skipped in part: the place of root's locks takes root to see");
    } else {
      CHECK(lock_directory() == "/run/pollen");
    }
    const TempDirectory runtime;
    Child child([&](const Child::Say& say) {
      if (geteuid() == 0 && setuid(65534) != 0) return 1;
      setenv("XDG_RUNTIME_DIR", runtime.path().c_str(), 1);
      say(lock_directory().string());
      setenv("XDG_RUNTIME_DIR", "relative", 1);
      say(lock_directory().string());
      unsetenv("XDG_RUNTIME_DIR");
      say(lock_directory().string());
      say(fmt::to_string(geteuid()));
      return 0;
    });
    CHECK(child.hear() == (runtime.path() / "pollen").string());
    const auto relative = child.hear();
    const auto unset = child.hear();
    const auto user = child.hear();
    REQUIRE(user);
    CHECK(relative == "/tmp/pollen-" + *user);
    CHECK(unset == "/tmp/pollen-" + *user);
    CHECK(child.finish() == 0);
  }

  TEST_CASE("processes that fight for one lcore never hold it together") {
    const TempDirectory directory;
    const fs::path witness = directory.path() / "witness";
    auto fight = [&](const Child::Say&) {
      int won = 0;
      for (int round = 0; round < 100'000 && won < 200; ++round) {
        try {
          const LcoreLock lock(1, directory.path());
          if (mkdir(witness.c_str(), 0700) != 0) return 1;  // someone else is inside as well
          if (rmdir(witness.c_str()) != 0) return 2;
          ++won;
        } catch (const pollen::Error& error) {
          if (error.code().value() != EBUSY) return 3;
        }
      }
      return won == 200 ? 0 : 4;
    };
    Child a(fight);
    Child b(fight);
    Child c(fight);
    CHECK(a.finish() == 0);
    CHECK(b.finish() == 0);
    CHECK(c.finish() == 0);
    CHECK(fs::is_empty(directory.path()));
  }
}
