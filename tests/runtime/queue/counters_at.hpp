// Puts queues at counters that a program reaches after hours: the free-running 32-bit numbers wrap,
// and a test can't post four thousand million requests. Reaches private members by the one door
// that the language leaves open, an explicit instantiation.
#pragma once

#include "memory_device.hpp"

namespace counters_at {

template <class Tag, auto Member>
struct Door {
  friend constexpr auto open(Tag) { return Member; }
};

#define COUNTERS_AT_DOOR(Tag, Member) \
  struct Tag {                        \
    friend constexpr auto open(Tag);  \
  };                                  \
  template struct Door<Tag, &pollen::queue::Member>

COUNTERS_AT_DOOR(Producer, SendQueue::producer_);
COUNTERS_AT_DOOR(Tail, SendQueue::tail_);
COUNTERS_AT_DOOR(Rung, SendQueue::rung_);
COUNTERS_AT_DOOR(SignalledEnd, SendQueue::signalled_end_);
COUNTERS_AT_DOOR(SignalledSequence, SendQueue::signalled_sequence_);
COUNTERS_AT_DOOR(Posted, SendQueue::posted_);
COUNTERS_AT_DOOR(Retired, SendQueue::retired_);
COUNTERS_AT_DOOR(Consumer, CompletionQueue::consumer_);

#undef COUNTERS_AT_DOOR

// An idle send queue whose producer index is `index` and that has posted `requests`.
inline void set(pollen::queue::SendQueue& sq, std::uint32_t index, std::uint32_t requests) {
  sq.*open(Producer{}) = index;
  sq.*open(Tail{}) = index;
  sq.*open(Rung{}) = index;
  sq.*open(SignalledEnd{}) = index;
  sq.*open(SignalledSequence{}) = requests;
  sq.*open(Posted{}) = requests;
  sq.*open(Retired{}) = requests;
}

inline void set(pollen::queue::CompletionQueue& cq, std::uint32_t consumer) {
  cq.*open(Consumer{}) = consumer;
}

}  // namespace counters_at
