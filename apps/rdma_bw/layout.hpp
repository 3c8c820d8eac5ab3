// How the memory of a QP is laid out, and how deep its queues can be with it.
//
// A slot holds one message. Without validation few slots are used over and over, at least a page of them,
// as perftest does. With it each message that is under way has a slot of its own, as it must not be
// overwritten before it was looked at; then memory bounds the depths.
//
//   send area   what the active side sends or writes from; what a passive side lets others READ
//   recv area   what comes in: receives, the target of WRITEs, what the active side has READ
//
// Thread rules: values. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parameters.hpp"

namespace pollen::bw {

// Who sends: the active side. In a test both ways each side is both.
struct Activity {
  bool active = false;
  bool passive = false;
};

inline constexpr std::size_t grh_bytes = 40;  // before each UD message that was received
inline constexpr std::size_t trailer_bytes = 64;
inline constexpr std::size_t validation_bytes = std::size_t{256} << 20;  // at most, of an lcore

struct Layout {
  std::uint32_t size = 0;        // bytes of a message
  std::size_t stride_bytes = 0;  // of a slot
  std::uint32_t send_slots = 0;
  std::uint32_t recv_slots = 0;
  std::uint32_t tx_depth = 0;  // messages under way; the peer's slots may cut it further
  std::uint32_t rx_depth = 0;  // receives posted; 0: the operation needs none

  std::size_t send_bytes() const noexcept { return send_slots * stride_bytes; }
  // The trailer behind it tells how many WRITEs there were (validation only).
  std::size_t recv_bytes() const noexcept {
    return recv_slots * stride_bytes + (has_trailer ? trailer_bytes : 0);
  }
  bool has_trailer = false;
};

Layout make_layout(const TestParameters& test, std::uint64_t size, Activity activity) noexcept;

// Whether completions tell the receiver of each message.
constexpr bool is_received(Op op) noexcept { return op == Op::send || op == Op::write_imm; }

}  // namespace pollen::bw
