#include "pollen/queue/send_queue.hpp"

#include "pollen/queue/completion_queue.hpp"
#include "pollen/queue/send_burst.hpp"

namespace pollen::queue {

SendQueue::SendQueue(const SendRing& ring, CompletionQueue& cq, std::uint32_t signal_every)
    : ring_(ring),
      mask_(ring.blocks - 1),
      signal_every_(std::clamp(signal_every, 1U, std::max(1U, ring.blocks / 4))),
      wr_ids_(std::make_unique<std::uint64_t[]>(ring.blocks)),
      marks_(std::make_unique<Mark[]>(ring.blocks)),
      cq_(&cq) {
  assert((ring.blocks & mask_) == 0 && ring.blocks <= max_send_blocks);
}

std::uint32_t SendQueue::room_for(CtrlSegment* last, std::uint32_t producer, std::uint32_t posted,
                                  std::uint32_t blocks) noexcept {
  const std::uint32_t unpublished = posted - posted_;
  const std::uint32_t slots = cq_->free_slots() + held_ - unpublished;
  const std::uint32_t room = ring_.blocks - (producer - tail_);
  if (failed_ || slots == 0 || room < blocks) return 0;
  std::uint32_t until_signal = signal_every_ - std::min(signal_every_, posted - signalled_sequence_);
  if (until_signal == 0 && unpublished != 0) {
    signal(last, producer, posted);
    until_signal = signal_every_;
  }
  // 0 is left where the WQE before is the device's already: then the next one is signalled, when
  // the burst asks again behind it. Requests like this one are expected to follow; smaller ones
  // put the signal off a little, but can never take more slots than there are.
  const std::uint32_t more = std::clamp(std::min(slots, until_signal * blocks), blocks, room);
  const std::uint32_t held = unpublished + std::min(slots, more);
  cq_->exchange(held_, held);
  held_ = held;
  return more;
}

void SendQueue::close_tail() noexcept {
  // There is room: a CQE was just retired, which freed a block, and the completion queue keeps a
  // slot for this NOP from the day the queue was attached to it.
  CtrlSegment* nop = wqe_at(producer_);
  store_u64(reinterpret_cast<std::byte*>(nop),
            big_endian((producer_ & 0xffff) << 8 | static_cast<std::uint32_t>(MLX5_OPCODE_NOP)) |
                static_cast<std::uint64_t>(big_endian(ring_.qpn << 8 | 1)) << 32);
  store_u64(reinterpret_cast<std::byte*>(nop) + 8, 0);
  wr_ids_[producer_ & mask_] = wr_ids_[block_of(last_)];
  own_nop_ = producer_;
  last_ = nop;
  ++producer_;
  signal(nop, producer_, posted_);
  ring_doorbell();
}

std::uint32_t SendQueue::retire_failed(std::uint16_t wqe_counter) noexcept {
  const std::uint32_t failed_at = tail_ + ((wqe_counter - tail_) & mask_);
  std::uint32_t count = 0;
  std::uint32_t index = tail_;
  while (static_cast<std::int32_t>(failed_at - index) >= 0 && index != producer_) {
    count += index != own_nop_;
    const std::uint32_t segments = big_endian(wqe_at(index)->qpn_ds) & 0x3f;
    index += std::max(1U, blocks_of_segments(segments));
  }
  tail_ = index;
  retired_ += count;
  retired_total_ += count;
  failed_ = true;
  return count;
}

void detail::put_inline_around(std::byte* ring, std::byte* ring_end, std::byte* to, const std::byte* from,
                               std::uint32_t bytes) noexcept {
  if (to == ring_end) to = ring;
  store_be(to, bytes | inline_flag);
  to += sizeof(std::uint32_t);
  while (bytes != 0) {
    const auto part =
        static_cast<std::uint32_t>(std::min<std::ptrdiff_t>(std::min(bytes, 64U), ring_end - to));
    copy_to_64(to, from, part);
    to += part;
    from += part;
    bytes -= part;
    if (to == ring_end) to = ring;
  }
}

}  // namespace pollen::queue
