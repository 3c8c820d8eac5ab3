#include "pollen/drivers/soft/uverbs/fd_table.hpp"

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace pollen::soft::uverbs::fd_table {

namespace {

std::array<std::atomic<std::uint8_t>, max_fds> known{};

struct Table {
  std::mutex mutex;
  std::map<int, std::shared_ptr<FdTarget>> targets;
};
// Never destroyed: programs close descriptors until the very end.
Table& table() {
  static Table& table = *new Table;
  return table;
}

}  // namespace

bool add(int fd, std::shared_ptr<FdTarget> target) {
  if (fd < 0 || fd >= max_fds) return false;
  std::shared_ptr<FdTarget> before;
  Table& t = table();
  const std::lock_guard guard(t.mutex);
  before = std::exchange(t.targets[fd], std::move(target));
  known[static_cast<std::size_t>(fd)].store(1, std::memory_order_release);
  return true;
}

std::shared_ptr<FdTarget> find(int fd) noexcept {
  if (fd < 0 || fd >= max_fds || known[static_cast<std::size_t>(fd)].load(std::memory_order_acquire) == 0)
    return nullptr;
  Table& t = table();
  const std::lock_guard guard(t.mutex);
  const auto found = t.targets.find(fd);
  return found == t.targets.end() ? nullptr : found->second;
}

void remove(int fd) noexcept {
  if (fd < 0 || fd >= max_fds || known[static_cast<std::size_t>(fd)].load(std::memory_order_acquire) == 0)
    return;
  std::shared_ptr<FdTarget> ended;  // ends after the lock is gone
  Table& t = table();
  const std::lock_guard guard(t.mutex);
  known[static_cast<std::size_t>(fd)].store(0, std::memory_order_release);
  const auto found = t.targets.find(fd);
  if (found == t.targets.end()) return;
  ended = std::move(found->second);
  t.targets.erase(found);
}

}  // namespace pollen::soft::uverbs::fd_table
