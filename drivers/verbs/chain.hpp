// Requests on their way to the provider: built one behind the other, posted in one call. A port has
// one, which its queues use in turn.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "pollen/queue/format.hpp"

namespace pollen::verbs {

inline constexpr std::uint32_t chain_requests = 64;
inline constexpr std::uint32_t max_gather = 30;  // what a QP may ask for; a WQE may still claim more

struct Chain {
  std::array<ibv_send_wr, chain_requests> sends;
  std::array<ibv_recv_wr, chain_requests> receives;
  std::array<ibv_sge, chain_requests * 4> sges;
  // Inline bytes that run across the end of the ring, in one piece.
  std::array<std::byte, 1024> unwrapped;
  std::uint32_t requests = 0;
  std::uint32_t sges_used = 0;
  bool unwrapped_used = false;

  void clear() noexcept {
    requests = 0;
    sges_used = 0;
    unwrapped_used = false;
  }
  bool has_room() const noexcept {
    return requests < chain_requests && sges_used + queue::max_segments <= sges.size() && !unwrapped_used;
  }
  ibv_sge& add_sge(std::uint64_t address, std::uint32_t bytes, std::uint32_t lkey) noexcept {
    return sges[sges_used++] = {address, bytes, lkey};
  }
};

}  // namespace pollen::verbs
