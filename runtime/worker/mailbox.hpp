// How other threads reach a worker: functions that it runs in its own loop, in the order in which
// they were posted. For control only; nothing of the data path passes here.
//
// The worker's side takes no lock: it reads one ring. Posters share that ring's other end, one at a
// time, under a lock of theirs.
//
// Ownership: a message belongs to the mailbox until it has run; what is left when the mailbox is
// destroyed is discarded. Thread rules: post() and wake() from any thread while the mailbox lives,
// the rest by the owner. Errors: the constructor throws Error; what a message throws leaves run().
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>

#include "pollen/worker/spsc_ring.hpp"

namespace pollen::worker {

class Mailbox {
 public:
  using Message = std::function<void()>;

  explicit Mailbox(std::size_t capacity = 256);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Wakes the owner if it sleeps. False: full, the message is dropped; the owner may be stuck.
  bool post(Message message);
  // Wakes the owner without a message.
  void wake() noexcept;

  // Runs up to `max` messages and returns how many it were.
  unsigned run(unsigned max);
  bool empty() noexcept { return ring_.empty(); }

  // From sleep_begin() to sleep_end() a post or wake makes fd() readable. False: there is a message
  // already, or a wake() since the last sleep_end(); don't sleep.
  bool sleep_begin() noexcept;
  void sleep_end() noexcept;
  int fd() const noexcept { return fd_; }

 private:
  enum class Owner : int { awake, asleep, woken };

  SpscRing<Message> ring_;
  std::mutex posters_;
  std::atomic<Owner> owner_{Owner::awake};
  int fd_;
};

}  // namespace pollen::worker
