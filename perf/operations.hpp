// The operations that are timed (queue_bench.cpp, soft_bench.cpp) and whose instructions are counted
// (count_ops.cpp): both of the same machine code, in functions that are never inlined, by whose names
// callgrind knows when to count.
#pragma once

#include <span>

#include "quiet_device.hpp"

namespace perf {

// One doorbell for each `per_doorbell` of `count` requests. False: there was no room.
bool post_send(SendQueue& sq, std::span<const std::byte, message_bytes> data, std::uint32_t count,
               std::uint32_t per_doorbell) noexcept;
// As above, of a message whose size only the run tells.
bool post_send_of(SendQueue& sq, std::span<const std::byte> data, std::uint32_t count,
                  std::uint32_t per_doorbell) noexcept;
bool post_write(SendQueue& sq, const Sge& local, const Remote& remote, std::uint32_t count,
                std::uint32_t per_doorbell) noexcept;
bool post_receives(RecvQueue& rq, const Sge& buffer, std::uint32_t count, std::uint32_t per_doorbell) noexcept;
std::uint32_t poll(CompletionQueue& cq, Completion* out) noexcept;

// A crude direct writer, the floor: no wr_id, no look at the room, no statistics, no signalling.
struct BareRing {
  std::byte* wqes;
  std::uint32_t* record;
  std::byte* uar;
  std::uint32_t producer = 0;  // in blocks
};
void post_bare_send(BareRing& ring, const std::byte* data, std::uint32_t count, std::uint32_t per_doorbell) noexcept;
void post_bare_write(BareRing& ring, const Sge& local, const Remote& remote, std::uint32_t count,
                     std::uint32_t per_doorbell) noexcept;

}  // namespace perf
