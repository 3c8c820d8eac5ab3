// The operations that are timed (queue_bench.cpp, soft_bench.cpp) and whose instructions are counted
// (count_ops.cpp): both of the same machine code, in functions that are never inlined, by whose names
// callgrind knows when to count.
#pragma once

#include <span>

#include "quiet_device.hpp"

namespace perf {

// A burst: `count` requests and one doorbell. False: there was not room for all of them.
bool post_send(SendQueue& sq, std::span<const std::byte, message_bytes> data, std::uint32_t count) noexcept;
// As above, of messages whose size only the run tells.
bool post_send_of(SendQueue& sq, std::span<const std::byte> data, std::uint32_t count) noexcept;
bool post_write(SendQueue& sq, Sge local, Remote remote, std::uint32_t count) noexcept;
bool post_receives(RecvQueue& rq, Sge buffer, std::uint32_t count) noexcept;
std::uint32_t poll(CompletionQueue& cq, Completion* out) noexcept;

// A crude direct writer, the floor: no wr_id, no look at the room, no statistics, no signalling.
struct BareRing {
  std::byte* wqes;
  std::uint32_t* record;
  std::byte* uar;
  std::uint32_t producer = 0;  // in blocks
};
struct BareQueue {
  Pages wqes{ring_blocks * block_bytes};
  Pages uar{4096};
  Pages data{message_bytes};
  std::uint32_t record = 0;
  BareRing ring{.wqes = wqes.bytes, .record = &record, .uar = uar.bytes};
};
void post_bare_send(BareRing& ring, const std::byte* data, std::uint32_t count) noexcept;
void post_bare_write(BareRing& ring, Sge local, Remote remote, std::uint32_t count) noexcept;

}  // namespace perf
