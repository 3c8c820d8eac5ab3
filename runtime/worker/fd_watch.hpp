// File descriptors that a worker looks at now and then: listening sockets, death watches. Not for
// data: a look is a system call.
//
// Ownership: the descriptors stay the caller's; remove() comes before close(). Thread rules: owner
// only. Errors: add() throws Error; what a callback throws leaves poll(). A callback may add and
// remove any descriptor, its own included; one that was removed is called no more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

namespace pollen::worker {

class FdWatch {
 public:
  using Callback = std::function<void(std::uint32_t events)>;  // EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, …

  FdWatch();
  ~FdWatch();
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;

  // events as for epoll_ctl(2), level-triggered unless they say otherwise.
  void add(int fd, std::uint32_t events, Callback callback);
  void change(int fd, std::uint32_t events);
  void remove(int fd) noexcept;  // no-op when it is not watched

  // Calls back for what is ready and returns how many that were. Never waits.
  unsigned poll();

  bool empty() const noexcept { return watched_.empty(); }
  int fd() const noexcept { return epoll_fd_; }  // readable when something is ready

 private:
  struct Watched {
    Callback callback;
    std::uint32_t generation = 0;
  };

  int epoll_fd_;
  std::uint32_t next_generation_ = 0;
  std::unordered_map<int, std::shared_ptr<Watched>> watched_;
};

}  // namespace pollen::worker
