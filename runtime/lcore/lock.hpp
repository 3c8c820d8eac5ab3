// One Pollen process per lcore: a lock file for each, naming its holder.
//
// The lock is the kernel's (an open file description lock), the file only says whose it is. So the
// lock of a dead holder is free at once, and a file that a crash left behind means nothing. Locks
// live in a directory per user: /run/pollen for root, else $XDG_RUNTIME_DIR/pollen, else
// /tmp/pollen-UID. Users, and containers with a /run of their own, do not see each other's.
//
// Ownership: the lock is held while the object lives; a forked child's copy releases nothing.
// Thread rules: an object belongs to one thread at a time. Errors: pollen::Error, EBUSY if held.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "pollen/lcore/cpu_set.hpp"

namespace pollen::lcore {

std::filesystem::path lock_directory();

class LcoreLock {
 public:
  explicit LcoreLock(unsigned cpu, const std::filesystem::path& directory = lock_directory());
  ~LcoreLock();
  LcoreLock(LcoreLock&& other) noexcept;
  LcoreLock& operator=(LcoreLock&& other) noexcept;
  LcoreLock(const LcoreLock&) = delete;
  LcoreLock& operator=(const LcoreLock&) = delete;

  unsigned cpu() const { return cpu_; }

 private:
  void release() noexcept;

  unsigned cpu_;
  std::filesystem::path path_;
  int fd_ = -1;
  pid_t owner_;
};

// Lcores that other processes, or this one, hold now. Takes no lock itself, so it disturbs nobody.
CpuSet held_lcores(const std::filesystem::path& directory = lock_directory());

}  // namespace pollen::lcore
