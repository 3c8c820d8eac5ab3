#include "pollen/worker/fd_watch.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "pollen/base/error.hpp"

namespace pollen::worker {

namespace {

// A descriptor's number comes back as another file's; the generation tells them apart.
std::uint64_t key(int fd, std::uint32_t generation) {
  return static_cast<std::uint64_t>(generation) << 32 | static_cast<std::uint32_t>(fd);
}

}  // namespace

FdWatch::FdWatch() : epoll_fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_fd_ < 0)
    throw Error(errno, {.attempted = "create an epoll set for a worker",
                        .remedy = "Raise the limit on open files: ulimit -n"});
}

FdWatch::~FdWatch() { ::close(epoll_fd_); }

void FdWatch::add(int fd, std::uint32_t events, Callback callback) {
  auto watched = std::make_shared<Watched>(Watched{std::move(callback), next_generation_++});
  epoll_event event{};
  event.events = events;
  event.data.u64 = key(fd, watched->generation);
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0)
    throw Error(errno, {.attempted = fmt::format("watch file descriptor {}", fd)});
  watched_[fd] = std::move(watched);
}

void FdWatch::change(int fd, std::uint32_t events) {
  const auto found = watched_.find(fd);
  epoll_event event{};
  event.events = events;
  if (found != watched_.end()) event.data.u64 = key(fd, found->second->generation);
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) != 0)
    throw Error(errno, {.attempted = fmt::format("watch file descriptor {} for other events", fd)});
}

void FdWatch::remove(int fd) noexcept {
  if (watched_.erase(fd) != 0) ::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
}

unsigned FdWatch::poll() {
  std::array<epoll_event, 16> ready{};
  const int got = ::epoll_wait(epoll_fd_, ready.data(), static_cast<int>(ready.size()), 0);
  unsigned count = 0;
  for (int i = 0; i < got; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    const auto found = watched_.find(static_cast<int>(event.data.u64 & 0xffffffff));
    if (found == watched_.end() || found->second->generation != event.data.u64 >> 32) continue;
    const std::shared_ptr<Watched> watched = found->second;  // the callback may remove itself
    watched->callback(event.events);
    ++count;
  }
  return count;
}

}  // namespace pollen::worker
