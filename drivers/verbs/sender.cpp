#include "pollen/drivers/verbs/sender.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/wqe.hpp"
#include "pollen/drivers/verbs/status.hpp"
#include "pollen/queue/barrier.hpp"

namespace pollen::verbs {

namespace {

using driver::Transport;
using queue::Status;
using soft::WqeReader;

constexpr auto operation_error = static_cast<std::uint8_t>(Status::local_qp_operation_error);
constexpr auto length_error = static_cast<std::uint8_t>(Status::local_length_error);
constexpr std::uint8_t any_fence = 0xe0;  // a weaker fence of mlx5's is made a full one
constexpr auto flushed = static_cast<std::uint8_t>(Status::flushed);

struct Kind {
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool known = false;
  std::uint8_t head_segments = 0;  // behind ctrl, on a connected QP
};

Kind kind_of(std::uint8_t opcode, Transport transport) noexcept {
  switch (opcode) {
    case MLX5_OPCODE_SEND:
      return {IBV_WR_SEND, true, 0};
    case MLX5_OPCODE_SEND_IMM:
      return {IBV_WR_SEND_WITH_IMM, true, 0};
    default:
      break;
  }
  if (transport == Transport::ud) return {};
  switch (opcode) {
    case MLX5_OPCODE_RDMA_WRITE:
      return {IBV_WR_RDMA_WRITE, true, 1};
    case MLX5_OPCODE_RDMA_WRITE_IMM:
      return {IBV_WR_RDMA_WRITE_WITH_IMM, true, 1};
    default:
      break;
  }
  if (transport == Transport::uc) return {};
  switch (opcode) {
    case MLX5_OPCODE_SEND_INVAL:
      return {IBV_WR_SEND_WITH_INV, true, 0};
    case MLX5_OPCODE_RDMA_READ:
      return {IBV_WR_RDMA_READ, true, 1};
    case MLX5_OPCODE_ATOMIC_CS:
      return {IBV_WR_ATOMIC_CMP_AND_SWP, true, 2};
    case MLX5_OPCODE_ATOMIC_FA:
      return {IBV_WR_ATOMIC_FETCH_AND_ADD, true, 2};
    default:
      return {};
  }
}

bool is_atomic(std::uint8_t opcode) noexcept {
  return opcode == MLX5_OPCODE_ATOMIC_CS || opcode == MLX5_OPCODE_ATOMIC_FA;
}
bool returns_data(std::uint8_t opcode) noexcept {
  return opcode == MLX5_OPCODE_RDMA_READ || is_atomic(opcode);
}

}  // namespace

Sender::Sender(const queue::SendRing& ring, SenderSetup setup)
    : ring_(ring), setup_(std::move(setup)), taken_(ring.blocks) {
  if (setup_.provider_inline_bytes >= ring_.max_inline_bytes) return;
  bounce_stride_ = (ring_.max_inline_bytes + 63) & ~63U;
  bounce_slots_ = std::bit_ceil(setup_.provider_wrs);
  const std::size_t bytes = std::size_t{bounce_stride_} * bounce_slots_;
  bounce_ = std::make_unique<std::byte[]>(bytes);
  bounce_mr_.reset(ibv_reg_mr(setup_.pd.get(), bounce_.get(), bytes, 0));
  if (bounce_mr_ == nullptr)
    throw Error(
        errno,
        {.attempted = fmt::format("register {} bytes for inline data", bytes),
         .on = ibv_get_device_name(setup_.qp->context->device),
         .why = fmt::format("the device takes {} bytes inline, and its copies of up to {} bytes found "
                            "no registered memory: {}",
                            setup_.provider_inline_bytes, ring_.max_inline_bytes, std::strerror(errno)),
         .remedy = "Ask for less inline data, or raise the limit of locked memory (ulimit -l)"});
}

void Sender::reset(std::uint64_t wr_tag) noexcept {
  setup_.wr_tag = wr_tag;
  rung_ = next_ = head_ = posted_ = completed_ = 0;
  bad_wqe_ = 0;
  started_ = failed_ = refused_ = provider_failed_ = false;
}

void Sender::doorbell() noexcept {
  rung_ += static_cast<std::uint16_t>(big_endian(__atomic_load_n(ring_.record, __ATOMIC_ACQUIRE)) - rung_);
  advance();
}

bool Sender::advance() noexcept {
  if (rung_ == head_) return false;
  bool did = false;
  if (started_)
    while (next_ != rung_ && !failed_ && bad_wqe_ == 0 && post_chain()) did = true;
  const std::uint32_t before = head_;
  settle();
  return did || head_ != before;
}

bool Sender::post_chain() noexcept {
  Chain& chain = setup_.chain;
  chain.clear();
  const std::uint32_t first = next_;
  while (next_ != rung_ && chain.has_room() && posted_ + chain.requests - completed_ < setup_.provider_wrs) {
    Taken& wqe = taken(next_);
    const std::uint32_t before = chain.requests;
    bad_wqe_ = translate(next_, wqe);
    if (bad_wqe_ != 0) break;
    wqe.ordinal = posted_ + chain.requests - 1;
    // A NOP made no request. It waits for the one before, which therefore is signalled.
    if (chain.requests == before && before != 0) chain.sends[before - 1].send_flags |= IBV_SEND_SIGNALED;
    next_ += wqe.blocks;
  }
  if (chain.requests == 0) return next_ != first;

  for (std::uint32_t i = 0; i < chain.requests; ++i) chain.sends[i].next = &chain.sends[i + 1];
  ibv_send_wr& last = chain.sends[chain.requests - 1];
  last.next = nullptr;
  last.send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(setup_.qp, chain.sends.data(), &bad) == 0) [[likely]] {
    posted_ += chain.requests;
    return true;
  }
  // Back to the refused request. Those before it are with the provider, perhaps without a signal:
  // the QP is put into error, and a request behind them, which is flushed, says when they are done.
  posted_ += static_cast<std::uint32_t>(bad - chain.sends.data());
  next_ = head_ + static_cast<std::uint16_t>(static_cast<std::uint16_t>(bad->wr_id) - head_);
  bad_wqe_ = operation_error;
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(setup_.qp, &error, IBV_QP_STATE);
  if (posted_ != completed_) {
    ibv_send_wr marker{};
    marker.wr_id = setup_.wr_tag | static_cast<std::uint16_t>(next_);
    marker.opcode = IBV_WR_SEND;
    marker.send_flags = IBV_SEND_SIGNALED;
    if (setup_.transport == Transport::ud) marker.wr.ud = bad->wr.ud;
    // Refused as well: then nothing is known of those before, and they are taken as done.
    if (ibv_post_send(setup_.qp, &marker, &bad) != 0) {
      completed_ = posted_;
      head_ = next_;
    }
  }
  return true;
}

std::uint8_t Sender::translate(std::uint32_t index, Taken& taken) noexcept {
  const WqeReader wqe(ring_.wqes, ring_.blocks, index);
  taken = {};
  taken.opcode = wqe.opcode();
  taken.blocks = static_cast<std::uint8_t>(wqe.blocks());
  taken.signalled = (wqe.ctrl().fm_ce_se & queue::ctrl_signal) != 0;
  if (wqe.qpn() != ring_.qpn || wqe.blocks() > rung_ - index) return operation_error;
  if (taken.opcode == MLX5_OPCODE_NOP) return 0;

  const bool datagram = setup_.transport == Transport::ud;
  const Kind kind = kind_of(taken.opcode, setup_.transport);
  const std::uint32_t data = 1U + (datagram ? 3U : kind.head_segments);
  if (!kind.known || wqe.segments() < data || (is_atomic(taken.opcode) && !setup_.atomics))
    return operation_error;

  Chain& chain = setup_.chain;
  ibv_send_wr& request = chain.sends[chain.requests];
  request.wr_id = setup_.wr_tag | static_cast<std::uint16_t>(index);
  request.opcode = kind.opcode;
  const std::uint8_t flags = wqe.ctrl().fm_ce_se;
  request.send_flags = 0;
  if (taken.signalled) request.send_flags |= IBV_SEND_SIGNALED;
  if ((flags & queue::ctrl_solicited) != 0) request.send_flags |= IBV_SEND_SOLICITED;
  if ((flags & any_fence) != 0) request.send_flags |= IBV_SEND_FENCE;
  if (kind.opcode == IBV_WR_SEND_WITH_INV)
    request.invalidate_rkey = big_endian(wqe.ctrl().imm);
  else
    request.imm_data = wqe.ctrl().imm;

  if (datagram) {
    queue::DatagramSegment to;
    std::byte* const bytes = reinterpret_cast<std::byte*>(&to);
    for (std::uint32_t i = 0; i < 3; ++i)
      std::memcpy(bytes + i * queue::segment_bytes, wqe.segment(1 + i), queue::segment_bytes);
    request.wr.ud.ah = setup_.addresses.find(setup_.pd, to);
    if (request.wr.ud.ah == nullptr) return operation_error;
    request.wr.ud.remote_qpn = big_endian(to.av.dqp_dct) & 0xffffff;
    request.wr.ud.remote_qkey = big_endian(to.av.key.qkey.qkey);
  } else if (kind.head_segments != 0) {
    queue::RemoteSegment remote;
    std::memcpy(&remote, wqe.segment(1), sizeof remote);
    if (is_atomic(taken.opcode)) {
      queue::AtomicSegment operands;
      std::memcpy(&operands, wqe.segment(2), sizeof operands);
      request.wr.atomic.remote_addr = big_endian(remote.raddr);
      request.wr.atomic.rkey = big_endian(remote.rkey);
      const bool swap = kind.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
      request.wr.atomic.compare_add = big_endian(swap ? operands.compare : operands.swap_add);
      request.wr.atomic.swap = swap ? big_endian(operands.swap_add) : 0;
    } else {
      request.wr.rdma.remote_addr = big_endian(remote.raddr);
      request.wr.rdma.rkey = big_endian(remote.rkey);
    }
  }
  const std::uint8_t syndrome = gather(index, data, taken);
  if (syndrome == 0) ++chain.requests;
  return syndrome;
}

std::uint8_t Sender::gather(std::uint32_t index, std::uint32_t first_segment, Taken& taken) noexcept {
  const WqeReader wqe(ring_.wqes, ring_.blocks, index);
  Chain& chain = setup_.chain;
  ibv_send_wr& request = chain.sends[chain.requests];
  const std::uint32_t sges = chain.sges_used;
  request.sg_list = &chain.sges[sges];
  std::uint64_t total = 0;
  if (first_segment < wqe.segments()) {
    std::uint32_t head;
    std::memcpy(&head, wqe.segment(first_segment), sizeof head);
    head = big_endian(head);
    if ((head & queue::inline_flag) != 0) {
      total = head & ~queue::inline_flag;
      if (total > ring_.max_inline_bytes || returns_data(taken.opcode) ||
          total + sizeof head > (wqe.segments() - first_segment) * std::uint64_t{queue::segment_bytes})
        return operation_error;
      put_inline(index, first_segment, static_cast<std::uint32_t>(total));
    } else {
      if (wqe.segments() - first_segment > setup_.provider_sge) return operation_error;
      for (std::uint32_t i = first_segment; i < wqe.segments(); ++i) {
        const soft::DataRef data = soft::read_data_segment(wqe.segment(i));
        const std::uint32_t bytes = data.bytes == 0 ? 1U << 31 : data.bytes;  // as mlx5 reads it
        chain.add_sge(data.address, bytes, data.lkey);
        total += bytes;
      }
    }
  }
  request.num_sge = static_cast<int>(chain.sges_used - sges);
  std::uint8_t syndrome = 0;
  if (total > setup_.max_message_bytes) syndrome = length_error;
  if (is_atomic(taken.opcode) && total != sizeof(std::uint64_t)) syndrome = operation_error;
  if (syndrome != 0) chain.sges_used = sges;
  taken.bytes = returns_data(taken.opcode) ? static_cast<std::uint32_t>(total) : 0;
  return syndrome;
}

void Sender::put_inline(std::uint32_t index, std::uint32_t segment, std::uint32_t bytes) noexcept {
  if (bytes == 0) return;
  const WqeReader wqe(ring_.wqes, ring_.blocks, index);
  constexpr std::uint32_t head_bytes = 4;
  Chain& chain = setup_.chain;
  if (bytes > setup_.provider_inline_bytes) {
    // The slot's last user is complete: there are as many slots as requests under way.
    std::byte* const slot =
        bounce_.get() + std::size_t{(posted_ + chain.requests) & (bounce_slots_ - 1)} * bounce_stride_;
    wqe.copy(segment, head_bytes, slot, bytes);
    chain.add_sge(reinterpret_cast<std::uint64_t>(slot), bytes, bounce_mr_->lkey);
    return;
  }
  chain.sends[chain.requests].send_flags |= IBV_SEND_INLINE;
  const std::byte* from = wqe.segment(segment) + head_bytes;
  if (from + bytes > ring_.wqes + std::size_t{ring_.blocks} * queue::block_bytes) {
    wqe.copy(segment, head_bytes, chain.unwrapped.data(), bytes);
    from = chain.unwrapped.data();
    chain.unwrapped_used = true;
  }
  chain.add_sge(reinterpret_cast<std::uint64_t>(from), bytes, 0);
}

void Sender::complete(std::uint16_t index, ibv_wc_status status, std::uint32_t vendor_error) noexcept {
  const std::uint32_t ahead = static_cast<std::uint16_t>(index - head_);
  const std::uint32_t at = head_ + ahead;
  if (at == next_ && bad_wqe_ != 0) {  // the marker behind a refused chain
    completed_ = posted_;
    head_ = next_;
    settle();
    return;
  }
  if (ahead >= next_ - head_) return;  // of an earlier life of the QP
  const Taken& wqe = taken(at);
  // What lies before it is complete too, and was not signalled.
  completed_ = wqe.ordinal + 1;
  head_ = at + wqe.blocks;
  if (status != IBV_WC_SUCCESS) {
    failed_ = true;
    provider_failed_ = provider_failed_ || status != IBV_WC_WR_FLUSH_ERR;
    write_cqe(at, static_cast<std::uint8_t>(to_syndrome(status)), static_cast<std::uint8_t>(vendor_error));
  } else if (wqe.signalled) {
    write_cqe(at, 0, 0);
  }
  settle();
}

void Sender::settle() noexcept {
  while (head_ != next_ && taken(head_).opcode == MLX5_OPCODE_NOP) {
    if (failed_ || taken(head_).signalled) write_cqe(head_, failed_ ? flushed : 0, 0);
    head_ += taken(head_).blocks;
  }
  if (head_ != next_) return;
  if (bad_wqe_ != 0) {
    write_cqe(next_, provider_failed_ ? flushed : bad_wqe_, 0);
    refused_ = true;
    failed_ = true;
    bad_wqe_ = 0;
    skip(taken(next_).blocks);
  }
  while (failed_ && next_ != rung_) {
    const WqeReader wqe(ring_.wqes, ring_.blocks, next_);
    taken(next_) = {.opcode = wqe.opcode()};
    write_cqe(next_, flushed, 0);
    skip(wqe.blocks());
  }
}

void Sender::skip(std::uint32_t blocks) noexcept {
  next_ += std::min(blocks, rung_ - next_);
  head_ = next_;
}

void Sender::write_cqe(std::uint32_t index, std::uint8_t syndrome, std::uint8_t vendor_syndrome) noexcept {
  const Taken& wqe = taken(index);
  setup_.cq.push({.qpn = ring_.qpn,
                  .wqe_counter = static_cast<std::uint16_t>(index),
                  .opcode = syndrome == 0 ? std::uint8_t{MLX5_CQE_REQ} : std::uint8_t{MLX5_CQE_REQ_ERR},
                  .send_opcode = wqe.opcode,
                  .byte_len = wqe.bytes,
                  .syndrome = syndrome,
                  .vendor_syndrome = vendor_syndrome});
}

}  // namespace pollen::verbs
