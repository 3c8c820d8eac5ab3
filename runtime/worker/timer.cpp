#include "pollen/worker/timer.hpp"

#include <algorithm>

namespace pollen::worker {

namespace {

std::uint64_t later(std::uint64_t now_ns, std::uint64_t delay_ns) {
  return now_ns + std::min(delay_ns, Timers::never_ns - now_ns);
}

}  // namespace

Timers::Timers(std::uint32_t expected) {
  heap_.reserve(expected);
  slots_.reserve(expected);
  free_slots_.reserve(expected);
}

Timer Timers::after(std::uint64_t now_ns, std::uint64_t delay_ns, Callback callback) {
  return start(later(now_ns, delay_ns), 0, std::move(callback));
}

Timer Timers::every(std::uint64_t now_ns, std::uint64_t period_ns, Callback callback) {
  period_ns = std::max<std::uint64_t>(period_ns, 1);
  return start(later(now_ns, period_ns), period_ns, std::move(callback));
}

Timer Timers::start(std::uint64_t due_ns, std::uint64_t period_ns, Callback callback) {
  if (free_slots_.empty()) {
    // Room for all there will be, so that neither expiry nor cancelling ever allocates.
    const std::size_t size = slots_.size() + 1;
    slots_.emplace_back();
    if (free_slots_.capacity() < size) free_slots_.reserve(slots_.capacity());
    if (heap_.capacity() < size) heap_.reserve(slots_.capacity());
    free_slots_.push_back(static_cast<std::uint32_t>(size - 1));
  }
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.callback = std::move(callback);
  slot.period_ns = period_ns;
  push({due_ns, next_order_++, index});
  return Timer(*this, index, slot.generation);
}

unsigned Timers::run_due(std::uint64_t now_ns) {
  // What a callback starts is due at now_ns or later and stands behind all that were there before.
  const std::uint64_t before = next_order_;
  unsigned count = 0;
  while (!heap_.empty() && heap_.front().due_ns <= now_ns && heap_.front().order < before) {
    const Entry due = heap_.front();
    remove(0);
    // Moved out while it runs: the table may grow, and the slot may be released.
    Callback callback = std::move(slots_[due.slot].callback);
    const std::uint32_t generation = slots_[due.slot].generation;
    const std::uint64_t period_ns = slots_[due.slot].period_ns;
    ++count;
    if (period_ns == 0) {
      release(due.slot);
      callback();
      continue;
    }
    callback();
    if (!holds(due.slot, generation)) continue;
    slots_[due.slot].callback = std::move(callback);
    const std::uint64_t missed = (now_ns - due.due_ns) / period_ns;
    push({later(due.due_ns + missed * period_ns, period_ns), next_order_++, due.slot});
  }
  return count;
}

void Timers::push(const Entry& entry) noexcept {
  heap_.push_back(entry);
  slots_[entry.slot].place = static_cast<std::uint32_t>(heap_.size() - 1);
  rise(slots_[entry.slot].place);
}

void Timers::remove(std::uint32_t place) noexcept {
  slots_[heap_[place].slot].place = not_queued;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (place == heap_.size()) return;
  put(place, last);
  rise(place);
  sink(slots_[last.slot].place);
}

void Timers::rise(std::uint32_t place) noexcept {
  const Entry entry = heap_[place];
  while (place != 0) {
    const std::uint32_t parent = (place - 1) / 2;
    if (!entry.before(heap_[parent])) break;
    put(place, heap_[parent]);
    place = parent;
  }
  put(place, entry);
}

void Timers::sink(std::uint32_t place) noexcept {
  const Entry entry = heap_[place];
  const auto size = static_cast<std::uint32_t>(heap_.size());
  for (;;) {
    std::uint32_t child = 2 * place + 1;
    if (child >= size) break;
    if (child + 1 < size && heap_[child + 1].before(heap_[child])) ++child;
    if (!heap_[child].before(entry)) break;
    put(place, heap_[child]);
    place = child;
  }
  put(place, entry);
}

void Timers::release(std::uint32_t index) noexcept {
  Slot& slot = slots_[index];
  if (slot.place != not_queued) remove(slot.place);
  ++slot.generation;
  // What the callback holds may own timers itself; it goes only when the table is whole again.
  const Callback callback = std::move(slot.callback);
  slot.callback = nullptr;
  free_slots_.push_back(index);
}

}  // namespace pollen::worker
