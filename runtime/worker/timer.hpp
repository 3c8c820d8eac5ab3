// Timers of one worker. The clock is the caller's: the loop says what time it is, once per turn.
//
//   Timer deadline = worker.after(5'000'000, [this] { give_up(); });   // cancelled with its Timer
//   Timer beat = worker.every(1'000'000'000, [this] { report(); });
//
// A callback runs in the first turn that begins at or after its time; those due in the same turn in
// the order of their times, and of their creation where these are equal. It may start, cancel and
// destroy any timer, its own included. What it starts runs in a later turn at the earliest. A
// periodic timer keeps to its grid; periods that were missed are left out, not made up for.
//
// Units: nanoseconds of Worker::now_ns(). Ownership: a Timer is the right to be called; it cancels
// when it is destroyed, and must not outlive its Timers. Thread rules: owner only.
// Cost: starting and cancelling O(log n); starting may allocate, expiry never does. Errors: what a
// callback throws leaves run_due(); the other due timers then wait for the next call.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace pollen::worker {

class Timers;

class Timer {
 public:
  Timer() = default;
  ~Timer() { cancel(); }
  Timer(Timer&& other) noexcept
      : timers_(std::exchange(other.timers_, nullptr)), slot_(other.slot_), generation_(other.generation_) {}
  Timer& operator=(Timer&& other) noexcept {
    if (this != &other) {
      cancel();
      timers_ = std::exchange(other.timers_, nullptr);
      slot_ = other.slot_;
      generation_ = other.generation_;
    }
    return *this;
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void cancel() noexcept;
  bool active() const noexcept;  // false once it was cancelled, or ran and is not periodic

 private:
  friend class Timers;
  Timer(Timers& timers, std::uint32_t slot, std::uint32_t generation)
      : timers_(&timers), slot_(slot), generation_(generation) {}

  Timers* timers_ = nullptr;
  std::uint32_t slot_ = 0;
  std::uint32_t generation_ = 0;
};

class Timers {
 public:
  using Callback = std::function<void()>;
  static constexpr std::uint64_t never_ns = std::numeric_limits<std::uint64_t>::max();

  // expected: so many timers at once start without an allocation of the table.
  explicit Timers(std::uint32_t expected = 64);
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  // now_ns must not be earlier than that of the last run_due(). A delay too long for the clock is
  // cut to its end.
  [[nodiscard]] Timer after(std::uint64_t now_ns, std::uint64_t delay_ns, Callback callback);
  // The first time after one period; a period of 0 counts as 1 ns.
  [[nodiscard]] Timer every(std::uint64_t now_ns, std::uint64_t period_ns, Callback callback);

  // Runs what is due and returns how many that were.
  unsigned run_due(std::uint64_t now_ns);

  std::uint64_t next_ns() const noexcept { return heap_.empty() ? never_ns : heap_.front().due_ns; }
  std::size_t size() const noexcept { return heap_.size(); }

 private:
  friend class Timer;

  static constexpr std::uint32_t not_queued = ~0U;

  struct Entry {
    std::uint64_t due_ns;
    std::uint64_t order;
    std::uint32_t slot;

    bool before(const Entry& other) const noexcept {
      return due_ns != other.due_ns ? due_ns < other.due_ns : order < other.order;
    }
  };
  struct Slot {
    Callback callback;
    std::uint64_t period_ns = 0;  // 0: once
    std::uint32_t generation = 0;
    std::uint32_t place = not_queued;  // in the heap
  };

  Timer start(std::uint64_t due_ns, std::uint64_t period_ns, Callback callback);
  bool holds(std::uint32_t slot, std::uint32_t generation) const noexcept {
    return slots_[slot].generation == generation;
  }
  void push(const Entry& entry) noexcept;
  void remove(std::uint32_t place) noexcept;
  void put(std::uint32_t place, const Entry& entry) noexcept {
    heap_[place] = entry;
    slots_[entry.slot].place = place;
  }
  void rise(std::uint32_t place) noexcept;
  void sink(std::uint32_t place) noexcept;
  void release(std::uint32_t slot) noexcept;

  std::vector<Entry> heap_;  // binary, the earliest first
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::uint64_t next_order_ = 0;
};

inline void Timer::cancel() noexcept {
  Timers* timers = std::exchange(timers_, nullptr);
  if (timers != nullptr && timers->holds(slot_, generation_)) timers->release(slot_);
}

inline bool Timer::active() const noexcept {
  return timers_ != nullptr && timers_->holds(slot_, generation_);
}

}  // namespace pollen::worker
