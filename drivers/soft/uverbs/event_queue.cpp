#include "pollen/drivers/soft/uverbs/event_queue.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/uverbs/libc.hpp"

namespace pollen::soft::uverbs {

EventQueue::EventQueue(std::size_t event_bytes) : event_bytes_(event_bytes) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) throw Error(errno, {.attempted = "make an event channel"});
  program_fd_ = fds[0];
  write_fd_ = fds[1];
  fcntl(write_fd_, F_SETFL, O_NONBLOCK);
  // An opening of its own, as "never block" belongs to the opening that the program shares otherwise.
  read_fd_ =
      libc::open(("/proc/self/fd/" + std::to_string(program_fd_)).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (read_fd_ < 0) {
    const int reason = errno;
    libc::close(fds[0]);
    libc::close(fds[1]);
    throw Error(reason, {.attempted = "make an event channel", .on = "/proc/self/fd"});
  }
}

EventQueue::~EventQueue() {
  libc::close(read_fd_);
  libc::close(write_fd_);
}

void EventQueue::push(std::span<const std::byte> event) {
  waiting_.emplace_back(event.begin(), event.end());
  retry();
}

void EventQueue::retry() noexcept {
  // Far below a pipe's atomic size: an event goes whole or not at all.
  while (!waiting_.empty()) {
    if (libc::write(write_fd_, waiting_.front().data(), event_bytes_) != static_cast<ssize_t>(event_bytes_))
      return;
    waiting_.pop_front();
  }
}

std::uint32_t EventQueue::take_back(std::uint64_t object) {
  std::deque<std::vector<std::byte>> all;
  std::vector<std::byte> event(event_bytes_);
  while (::read(read_fd_, event.data(), event_bytes_) == static_cast<ssize_t>(event_bytes_))
    all.push_back(event);
  for (auto& later : waiting_) all.push_back(std::move(later));
  waiting_.clear();
  std::uint32_t taken = 0;
  for (auto& one : all) {
    std::uint64_t of;
    std::memcpy(&of, one.data(), sizeof of);
    if (of == object)
      ++taken;
    else
      waiting_.push_back(std::move(one));
  }
  retry();
  return taken;
}

}  // namespace pollen::soft::uverbs
