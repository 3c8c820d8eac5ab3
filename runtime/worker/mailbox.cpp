#include "pollen/worker/mailbox.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "pollen/base/error.hpp"

namespace pollen::worker {

Mailbox::Mailbox(std::size_t capacity) : ring_(capacity), fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0)
    throw Error(errno, {.attempted = "create an eventfd for a worker's mailbox",
                        .remedy = "Raise the limit on open files: ulimit -n"});
}

Mailbox::~Mailbox() { ::close(fd_); }

bool Mailbox::post(Message message) {
  {
    const std::lock_guard lock(posters_);
    if (!ring_.push(std::move(message))) return false;
  }
  wake();
  return true;
}

// The exchanges of both sides have one order. If the owner's comes first, this one sees it asleep
// and writes; if it comes second, the owner sees `woken`, and with it all that was posted before.
void Mailbox::wake() noexcept {
  if (owner_.exchange(Owner::woken, std::memory_order_acq_rel) != Owner::asleep) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

unsigned Mailbox::run(unsigned max) {
  unsigned count = 0;
  for (Message message; count < max && ring_.pop(message); ++count) message();
  return count;
}

bool Mailbox::sleep_begin() noexcept {
  const Owner before = owner_.exchange(Owner::asleep, std::memory_order_acq_rel);
  if (before != Owner::woken && ring_.empty()) return true;
  sleep_end();
  return false;
}

void Mailbox::sleep_end() noexcept {
  owner_.exchange(Owner::awake, std::memory_order_acq_rel);
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof count);
}

}  // namespace pollen::worker
