// A queue of events that the program reads from a file descriptor: a completion channel's, or a
// device's for asynchronous events. A pipe, of which this side holds both ends as well, so that
// nothing happens to it when the program has closed its own.
//
// What the program has not read when an object goes can be taken back, and is then not counted as
// reported: libibverbs waits for the acknowledgement of every event that was.
//
// Thread rules: under the NIC's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace pollen::soft::uverbs {

class EventQueue {
 public:
  // event_bytes: the size of each event, as the kernel's ABI has it; its first 8 name the object.
  // Throws Error.
  explicit EventQueue(std::size_t event_bytes);
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  int program_fd() const noexcept { return program_fd_; }  // the program closes it
  void push(std::span<const std::byte> event);
  // Takes back what is unread of an object. Returns how many.
  std::uint32_t take_back(std::uint64_t object);
  // Events that found the pipe full go out now if there is room.
  void retry() noexcept;

 private:
  std::size_t event_bytes_;
  int program_fd_ = -1;
  int read_fd_ = -1;  // of this side, never blocks
  int write_fd_ = -1;
  std::deque<std::vector<std::byte>> waiting_;
};

}  // namespace pollen::soft::uverbs
