// Which of the process's file descriptors are the device's: openings of it, completion channels.
// Several descriptors may stand for one thing (dup); it ends with the last.
//
// Asked on every close, ioctl and mmap of the program: for other descriptors that costs one load.
// Thread rules: any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "pollen/drivers/soft/uverbs/event_queue.hpp"

namespace pollen::soft::uverbs {

class FdTarget {
 public:
  virtual ~FdTarget() = default;
};

// A completion channel, or the asynchronous events of an opening.
struct Channel final : FdTarget {
  explicit Channel(std::shared_ptr<EventQueue> the_queue) : queue(std::move(the_queue)) {}
  std::shared_ptr<EventQueue> queue;
};

namespace fd_table {

inline constexpr int max_fds = 1 << 16;

// False: the number is beyond what is kept.
bool add(int fd, std::shared_ptr<FdTarget> target);
std::shared_ptr<FdTarget> find(int fd) noexcept;
void remove(int fd) noexcept;
template <typename T>
std::shared_ptr<T> find_as(int fd) noexcept {
  return std::dynamic_pointer_cast<T>(find(fd));
}

}  // namespace fd_table

}  // namespace pollen::soft::uverbs
