#include "layout.hpp"

#include <algorithm>

#include "pollen/memory/arena.hpp"

namespace pollen::bw {

Layout make_layout(const TestParameters& test, std::uint64_t size, Activity activity) noexcept {
  constexpr std::size_t page_bytes = 4096;
  Layout layout;
  layout.size = static_cast<std::uint32_t>(size);
  const std::size_t line = memory::cache_line_bytes;
  layout.stride_bytes = (size + (test.is_ud() ? grh_bytes : 0) + line - 1) / line * line;
  layout.tx_depth = test.tx_depth;
  const bool receives = activity.passive && is_received(test.op);
  layout.rx_depth = receives ? test.rx_depth : 0;

  const bool read = test.op == Op::read;
  const bool sends = read ? activity.passive : activity.active;
  const bool takes = read ? activity.active : activity.passive;
  if (!test.validate) {
    const auto few = static_cast<std::uint32_t>(std::max<std::size_t>(1, page_bytes / layout.stride_bytes));
    layout.send_slots = sends ? few : 0;
    layout.recv_slots = takes ? few : 0;
    return layout;
  }

  const auto most = static_cast<std::uint32_t>(std::clamp<std::size_t>(
      validation_bytes / 2 / test.qps / layout.stride_bytes, 2, std::size_t{1} << 20));
  layout.tx_depth = std::min(test.tx_depth, most);
  // One slot more than are under way: what is READ into the same place twice comes from two places.
  if (sends) layout.send_slots = read ? std::min(test.tx_depth, most - 1) + 1 : layout.tx_depth;
  if (!takes) return layout;
  switch (test.op) {
    case Op::send:
      layout.recv_slots = layout.rx_depth = std::min(test.rx_depth, most);
      break;
    case Op::write_imm:
      // Half of the slots for messages that were received and not looked at yet, half for those under way.
      layout.rx_depth = std::min(test.rx_depth, most / 2);
      layout.recv_slots = 2 * layout.rx_depth;
      break;
    case Op::write:
      layout.recv_slots = layout.tx_depth;
      layout.has_trailer = true;
      break;
    case Op::read:
      layout.recv_slots = layout.tx_depth;
      break;
  }
  return layout;
}

}  // namespace pollen::bw
