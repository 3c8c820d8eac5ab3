// The parts of a work request, all in host order.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "pollen/base/bytes.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::queue {

// Local memory; the region of the lkey must cover it until the request completes.
struct Sge {
  const void* address;
  std::uint32_t bytes;
  std::uint32_t lkey;
};

struct Remote {
  std::uint64_t address;
  std::uint32_t rkey;
};

// Of one request. Left out, everything is off and wr_id is 0.
struct WrOptions {
  std::uint64_t wr_id = 0;
  bool signal = false;     // a completion of its own, besides those that the queue asks for
  bool solicited = false;  // the receiver's CQ raises an event if it is armed for solicited ones
  bool fence = false;      // starts only when all earlier READs and atomics are done
};

// Where a UD datagram goes: the 48-byte segment as the NIC wants it, made once by the driver
// (Pd::create_address) and good for any number of sends.
struct Address {
  DatagramSegment segment;
};

}  // namespace pollen::queue
