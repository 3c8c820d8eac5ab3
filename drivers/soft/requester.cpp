// The requester: takes WQEs from the send ring, turns them into packets, and completes them when
// the peer has acknowledged or answered. Go-back-N: everything that may have to be sent again is
// still in the ring and in the program's memory, so nothing is kept but where it was.
#include <algorithm>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/engine.hpp"
#include "pollen/memory/copy.hpp"

namespace pollen::soft {

namespace {

using driver::Access;
using driver::QpState;
using driver::Transport;

constexpr std::uint32_t max_message_bytes = 1U << 30;

std::uint32_t packets_of(std::uint32_t bytes, std::uint32_t mtu) noexcept {
  return bytes == 0 ? 1 : (bytes + mtu - 1) / mtu;
}

// --- from WQE to PendingWqe -------------------------------------------------------------------

struct Kind {
  bool known = false;
  bool datagram = false;            // allowed on UD
  std::uint32_t head_segments = 0;  // behind ctrl, RC: remote address, atomic operands
};

Kind kind_of(std::uint8_t opcode) noexcept {
  switch (opcode) {
    case MLX5_OPCODE_NOP:
      return {true, true, 0};
    case MLX5_OPCODE_SEND:
    case MLX5_OPCODE_SEND_IMM:
      return {true, true, 0};
    case MLX5_OPCODE_SEND_INVAL:
      return {true, false, 0};
    case MLX5_OPCODE_RDMA_WRITE:
    case MLX5_OPCODE_RDMA_WRITE_IMM:
    case MLX5_OPCODE_RDMA_READ:
      return {true, false, 1};
    case MLX5_OPCODE_ATOMIC_CS:
    case MLX5_OPCODE_ATOMIC_FA:
      return {true, false, 2};
    default:
      return {};
  }
}

// The gather or scatter list; false: some entry is not covered by its region.
bool check_list(Engine& engine, const SoftQp& qp, const WqeReader& wqe, std::uint32_t first, Access access,
                std::uint64_t& total) noexcept {
  for (std::uint32_t i = first; i < wqe.segments(); ++i) {
    const DataRef data = read_data_segment(wqe.segment(i));
    const std::uint64_t bytes = data.bytes == 0 ? std::uint64_t{1} << 31 : data.bytes;  // as mlx5 reads it
    if (engine.regions().find(data.lkey, qp.pd, data.address, bytes, access) == nullptr) return false;
    total += bytes;
  }
  return true;
}

// Looks at the WQE at next_block. Returns the syndrome that it fails with, or 0.
std::uint8_t parse(Engine& engine, SoftQp& qp, const WqeReader& wqe, PendingWqe& out) noexcept {
  const Requester& r = qp.requester;
  const bool datagram = qp.transport == Transport::ud;
  const Kind kind = kind_of(wqe.opcode());
  std::uint32_t first = 1 + (datagram && wqe.opcode() != MLX5_OPCODE_NOP ? 3U : kind.head_segments);
  if (!kind.known || (datagram && !kind.datagram) || wqe.qpn() != qp.qpn() || wqe.segments() < first ||
      wqe.blocks() > r.doorbell - r.next_block)
    return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;

  out = {};
  out.index = r.next_block;
  out.opcode = wqe.opcode();
  out.segments = static_cast<std::uint8_t>(wqe.segments());
  out.first_data = static_cast<std::uint8_t>(first);
  out.signalled = (wqe.ctrl().fm_ce_se & queue::ctrl_signal) != 0;
  out.solicited = (wqe.ctrl().fm_ce_se & queue::ctrl_solicited) != 0;
  out.fence = (wqe.ctrl().fm_ce_se & queue::ctrl_fence) != 0;
  if (out.opcode == MLX5_OPCODE_NOP) return 0;

  if (!datagram && kind.head_segments != 0) {
    queue::RemoteSegment remote;
    std::memcpy(&remote, wqe.segment(1), sizeof remote);
    out.remote = big_endian(remote.raddr);
    out.rkey = big_endian(remote.rkey);
  }
  std::uint64_t total = 0;
  if (first < wqe.segments()) {
    std::uint32_t head;
    std::memcpy(&head, wqe.segment(first), sizeof head);
    head = big_endian(head);
    if ((head & queue::inline_flag) != 0) {
      out.is_inline = true;
      total = head & ~queue::inline_flag;
      if (total + 4 > (wqe.segments() - first) * std::uint64_t{queue::segment_bytes} ||
          out.is_read_or_atomic())
        return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    } else {
      const Access access = out.is_read_or_atomic() ? Access::local_write : Access::none;
      if (!check_list(engine, qp, wqe, first, access, total)) return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
      if (wqe.segments() == first + 1) out.single = read_data_segment(wqe.segment(first));
    }
  }
  if (total > max_message_bytes || (datagram && total > qp.mtu)) return MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
  if (out.is_atomic() && total != sizeof(std::uint64_t)) return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
  const bool reliable_only = out.is_read_or_atomic() || out.opcode == MLX5_OPCODE_SEND_INVAL;
  if (reliable_only && qp.transport != Transport::rc) return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
  if (out.is_read_or_atomic() && qp.rts.reads_out == 0) return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
  out.bytes = static_cast<std::uint32_t>(total);
  out.packets = packets_of(out.bytes, qp.mtu);
  return 0;
}

bool admit(Engine& engine, SoftQp& qp) noexcept {
  Requester& r = qp.requester;
  const WqeReader wqe = qp.wqe(r.next_block);
  PendingWqe& pending = r.at(r.tail);
  const std::uint8_t syndrome = parse(engine, qp, wqe, pending);
  if (syndrome != 0) {
    r.bad_wqe = syndrome;
    return false;
  }
  // Half the circle of PSNs at most is under way: beyond it, before and after are the same.
  if (r.head != r.tail && ((r.next_psn - r.una_psn) & psn_mask) + pending.packets > psn_mask / 2)
    return false;
  pending.first_psn = r.next_psn;
  r.next_psn = (r.next_psn + pending.packets) & psn_mask;
  r.next_block += wqe.blocks();
  ++r.tail;
  return true;
}

// --- local memory -----------------------------------------------------------------------------

// Copies message bytes [offset, offset + bytes) out of the WQE's gather list.
bool gather(Engine& engine, const SoftQp& qp, const PendingWqe& pending, std::uint32_t offset, std::byte* to,
            std::uint32_t bytes) noexcept {
  const WqeReader wqe = qp.wqe(pending.index);
  if (pending.is_inline) {
    wqe.copy(pending.first_data, 4 + offset, to, bytes);
    return true;
  }
  for (std::uint32_t i = pending.first_data; i < pending.segments && bytes != 0; ++i) {
    const DataRef data = read_data_segment(wqe.segment(i));
    if (offset >= data.bytes) {
      offset -= data.bytes;
      continue;
    }
    const std::uint32_t part = std::min(bytes, data.bytes - offset);
    const std::uint64_t address = data.address + offset;
    const RegionEntry* region = engine.regions().find(data.lkey, qp.pd, address, part, Access::none);
    if (region == nullptr) return false;
    memory::copy(to, region->memory(address), part);
    to += part;
    bytes -= part;
    offset = 0;
  }
  return bytes == 0;
}

// The same in the other direction, for READ responses and atomics.
bool scatter(Engine& engine, const SoftQp& qp, const PendingWqe& pending, std::uint32_t offset,
             const std::byte* from, std::uint32_t bytes) noexcept {
  const WqeReader wqe = qp.wqe(pending.index);
  for (std::uint32_t i = pending.first_data; i < pending.segments && bytes != 0; ++i) {
    const DataRef data = read_data_segment(wqe.segment(i));
    if (offset >= data.bytes) {
      offset -= data.bytes;
      continue;
    }
    const std::uint32_t part = std::min(bytes, data.bytes - offset);
    const std::uint64_t address = data.address + offset;
    const RegionEntry* region = engine.regions().find(data.lkey, qp.pd, address, part, Access::local_write);
    if (region == nullptr) return false;
    memory::copy(region->memory(address), from, part);
    from += part;
    bytes -= part;
    offset = 0;
  }
  return bytes == 0;
}

// --- from PendingWqe to packets ---------------------------------------------------------------

// First, middle, last and only variants of an operation, as BTH numbers them.
PacketOp request_op(std::uint8_t opcode, bool first, bool last) noexcept {
  const auto pick = [&](PacketOp f, PacketOp m, PacketOp l, PacketOp o) {
    return first ? (last ? o : f) : (last ? l : m);
  };
  switch (opcode) {
    case MLX5_OPCODE_SEND:
      return pick(PacketOp::send_first, PacketOp::send_middle, PacketOp::send_last, PacketOp::send_only);
    case MLX5_OPCODE_SEND_IMM:
      return pick(PacketOp::send_first, PacketOp::send_middle, PacketOp::send_last_imm,
                  PacketOp::send_only_imm);
    case MLX5_OPCODE_SEND_INVAL:
      return pick(PacketOp::send_first, PacketOp::send_middle, PacketOp::send_last_inv,
                  PacketOp::send_only_inv);
    case MLX5_OPCODE_RDMA_WRITE:
      return pick(PacketOp::write_first, PacketOp::write_middle, PacketOp::write_last, PacketOp::write_only);
    case MLX5_OPCODE_RDMA_WRITE_IMM:
      return pick(PacketOp::write_first, PacketOp::write_middle, PacketOp::write_last_imm,
                  PacketOp::write_only_imm);
    case MLX5_OPCODE_RDMA_READ:
      return PacketOp::read_request;
    case MLX5_OPCODE_ATOMIC_CS:
      return PacketOp::cmp_swap;
    default:
      return PacketOp::fetch_add;
  }
}

// Copies message bytes into the packet. 0, or the syndrome of a list whose region is gone.
std::uint8_t copy_payload(Engine& engine, const SoftQp& qp, const PendingWqe& pending, Link& link,
                          std::uint32_t offset, std::uint32_t bytes) noexcept {
  link.packet().payload_bytes = static_cast<std::uint16_t>(bytes);
  if (bytes == 0) return 0;
  return gather(engine, qp, pending, offset, link.payload(bytes), bytes) ? 0
                                                                         : MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
}

// How many packets from the k-th on go as one; 0: their payload has to be copied.
std::uint32_t refer_to_run(Engine& engine, const SoftQp& qp, const PendingWqe& pending, Link& link,
                           std::uint32_t k) noexcept {
  const std::uint32_t offset = k * qp.mtu;
  const std::uint32_t bytes = std::min(pending.bytes - offset, std::min(max_run_bytes, qp.mtu * 255));
  // UC completes with the packet sent: then the memory is the program's again.
  if (pending.single.bytes == 0 || bytes <= slot_payload_bytes || qp.transport == Transport::uc) return 0;
  const std::uint64_t address = pending.single.address + offset;
  const RegionEntry* region = engine.regions().find(pending.single.lkey, qp.pd, address, bytes, Access::none);
  if (region == nullptr || !engine.refer(link, *region, address, link.packet())) return 0;
  const std::uint32_t run = packets_of(bytes, qp.mtu);
  link.packet().run = static_cast<std::uint8_t>(run);
  link.packet().payload_bytes = static_cast<std::uint16_t>(bytes - (run - 1) * qp.mtu);
  return run;
}

std::uint8_t emit(Engine& engine, SoftQp& qp, PendingWqe& pending) noexcept {
  Link& link = *qp.link;
  Packet& packet = link.packet();
  packet = {};
  packet.pkey = default_pkey;
  packet.dest_qpn = qp.rtr.remote_qpn;
  packet.gid_index = static_cast<std::uint8_t>(qp.rtr.path.local_gid_index);
  if (pending.is_read_or_atomic()) {
    // A READ that was answered in part is asked for the rest of it.
    const std::uint32_t have = pending.received * qp.mtu;
    packet.op = request_op(pending.opcode, true, true);
    packet.flags = packet_ack_request;
    packet.psn = (pending.first_psn + pending.received) & psn_mask;
    packet.address = pending.remote + have;
    packet.rkey = pending.rkey;
    packet.dma_bytes = pending.bytes - have;
    if (pending.is_atomic()) {
      queue::AtomicSegment operands;
      std::memcpy(&operands, qp.wqe(pending.index).segment(2), sizeof operands);
      packet.atomic.swap_add = big_endian(operands.swap_add);
      packet.atomic.compare = big_endian(operands.compare);
    }
    engine.commit(link);
    pending.emitted = 1;
    return 0;
  }
  const std::uint32_t k = pending.emitted;
  const std::uint32_t run = refer_to_run(engine, qp, pending, link, k);
  const std::uint32_t psns = std::max(run, 1U);
  const bool last = k + psns == pending.packets;
  packet.op = request_op(pending.opcode, k == 0, last);
  if (qp.transport == Transport::uc) packet.op = unreliable(packet.op);
  packet.psn = (pending.first_psn + k) & psn_mask;
  if (k == 0) {
    packet.address = pending.remote;
    packet.rkey = pending.rkey;
    packet.dma_bytes = pending.bytes;
  }
  if (last) {
    packet.flags |= packet_ack_request;
    if (pending.solicited) packet.flags |= packet_solicited;
    packet.imm = big_endian(qp.wqe(pending.index).ctrl().imm);
  }
  if (run == 0) {
    const std::uint32_t offset = k * qp.mtu;
    const std::uint8_t failed =
        copy_payload(engine, qp, pending, link, offset, last ? pending.bytes - offset : qp.mtu);
    if (failed != 0) return failed;
  }
  pending.emitted += psns;
  engine.commit(link);
  return 0;
}

std::uint8_t emit_datagram(Engine& engine, SoftQp& qp, PendingWqe& pending, Link& link) noexcept {
  const WqeReader wqe = qp.wqe(pending.index);
  queue::DatagramSegment to;
  std::memcpy(&to, wqe.segment(1), sizeof(to) / 3);
  std::memcpy(reinterpret_cast<std::byte*>(&to) + 16, wqe.segment(2), 16);
  std::memcpy(reinterpret_cast<std::byte*>(&to) + 32, wqe.segment(3), 16);
  Packet& packet = link.packet();
  packet = {};
  packet.pkey = default_pkey;
  packet.op = pending.opcode == MLX5_OPCODE_SEND_IMM ? PacketOp::ud_send_only_imm : PacketOp::ud_send_only;
  if (pending.solicited) packet.flags = packet_solicited;
  packet.dest_qpn = big_endian(to.av.dqp_dct) & psn_mask;
  packet.psn = pending.first_psn;
  packet.imm = big_endian(wqe.ctrl().imm);
  packet.rkey = big_endian(to.av.key.qkey.qkey);
  // A queue key with its top bit set stands for the QP's own.
  if ((packet.rkey & 0x80000000U) != 0) packet.rkey = qp.init.qkey;
  packet.dma_bytes = qp.qpn();
  packet.gid_index = static_cast<std::uint8_t>(big_endian(to.av.grh_gid_fl) >> 20 & 0xff);
  const std::uint8_t failed = copy_payload(engine, qp, pending, link, 0, pending.bytes);
  if (failed != 0) return failed;
  pending.emitted = 1;
  engine.commit(link);
  return 0;
}

Link& datagram_link(Engine& engine, const SoftQp& qp, const PendingWqe& pending) noexcept {
  const WqeReader wqe = qp.wqe(pending.index);
  driver::Gid gid;
  std::memcpy(gid.bytes.data(), wqe.segment(3), gid.bytes.size());
  std::uint32_t dqp;
  std::memcpy(&dqp, wqe.segment(1) + offsetof(queue::AddressVector, dqp_dct), sizeof dqp);
  try {
    return engine.link_to(gid, big_endian(dqp) & psn_mask);
  } catch (const Error&) {
    // Shared memory is full. The link is there now, and leads nowhere until there is room.
    return engine.link_to(gid, big_endian(dqp) & psn_mask);
  }
}

// The WQE at the cursor can't be sent. It fails when all before it are through.
void postpone_failure(SoftQp& qp, const PendingWqe& pending, std::uint8_t syndrome) noexcept {
  Requester& r = qp.requester;
  r.bad_wqe = syndrome;
  r.next_block = pending.index;
  r.next_psn = pending.first_psn;
  r.tail = r.cursor;
}

void complete(Engine& engine, SoftQp& qp, const PendingWqe& pending) noexcept {
  if (!pending.signalled) return;
  engine.complete_send(qp, pending.index, pending.opcode, pending.is_read_or_atomic() ? pending.bytes : 0);
}

// Completes from the oldest on what is acknowledged or answered.
void retire(Engine& engine, SoftQp& qp) noexcept {
  Requester& r = qp.requester;
  while (r.head != r.tail) {
    const PendingWqe& pending = r.at(r.head);
    if (pending.packets == 0) {
      if (r.head == r.cursor) break;  // a NOP that has not had its turn
    } else if (pending.is_read_or_atomic()) {
      if (!pending.done) break;
    } else if (psn_distance(r.una_psn, pending.last_psn()) <= 0) {
      break;
    }
    if (r.head == r.cursor) ++r.cursor;
    ++r.head;
    complete(engine, qp, pending);  // last: the completion queue may run over, which flushes the QP
  }
  // What is acknowledged need not be sent again, though the cursor had gone back before it.
  if (r.head == r.cursor && r.head != r.tail) {
    PendingWqe& pending = r.at(r.head);
    const std::int32_t acked = psn_distance(r.una_psn, pending.first_psn);
    if (!pending.is_read_or_atomic() && acked > static_cast<std::int32_t>(pending.emitted))
      pending.emitted = static_cast<std::uint32_t>(acked);
  }
  if (r.head == r.tail && r.bad_wqe != 0 && qp.can_complete()) {
    const WqeReader wqe = qp.wqe(r.next_block);
    engine.fail_send(qp, r.next_block, wqe.opcode(), r.bad_wqe, 0);
  }
}

// Sends again from `psn` on.
void go_back(Engine& engine, SoftQp& qp, std::uint32_t psn) noexcept {
  Requester& r = qp.requester;
  r.reads_out = 0;
  std::uint32_t i = r.head;
  for (; i != r.tail; ++i) {
    PendingWqe& pending = r.at(i);
    if (pending.packets == 0) continue;
    if (psn_distance(pending.last_psn(), psn) >= 0) break;
    if (pending.is_read_or_atomic() && !pending.done) ++r.reads_out;
  }
  if (i == r.tail) return;
  r.cursor = i;
  for (; i != r.tail; ++i) {
    PendingWqe& pending = r.at(i);
    pending.emitted = 0;
    if (pending.packets == 0) continue;
    const std::int32_t into = psn_distance(psn, pending.first_psn);
    if (into > 0 && !pending.is_read_or_atomic()) pending.emitted = static_cast<std::uint32_t>(into);
    if (pending.done) pending.emitted = 1;
  }
  engine.activate(qp);
}

bool has_unacknowledged(const Requester& r) noexcept { return r.head != r.cursor || r.head != r.tail; }

// The peer has taken everything before `psn`.
void acknowledge(Engine& engine, SoftQp& qp, std::uint32_t psn) noexcept {
  Requester& r = qp.requester;
  if (psn_distance(psn, r.una_psn) > 0) {
    r.una_psn = psn;
    r.retries_left = qp.rts.retry_count;
    r.rnr_left = qp.rts.rnr_retry;
    r.deadline_ns = 0;
  }
  retire(engine, qp);
  if (r.deadline_ns == 0 && has_unacknowledged(r)) engine.start_timer(qp);
  if (r.has_unsent()) engine.activate(qp);
}

// The oldest READ or atomic that is out and not answered; null when there is none before `psn`.
PendingWqe* unanswered_before(Requester& r, std::uint32_t psn) noexcept {
  for (std::uint32_t i = r.head; i != r.tail; ++i) {
    PendingWqe& pending = r.at(i);
    if (pending.packets == 0) continue;
    if (psn_distance(pending.first_psn, psn) >= 0) return nullptr;
    if (pending.is_read_or_atomic() && !pending.done) return &pending;
  }
  return nullptr;
}

// Responses come in order: a later answer without this one means that it was lost.
bool resend_lost_response(Engine& engine, SoftQp& qp, std::uint32_t before_psn) noexcept {
  Requester& r = qp.requester;
  const PendingWqe* lost = unanswered_before(r, before_psn);
  if (lost == nullptr) return false;
  if (!r.resent_for_gap) {
    r.resent_for_gap = true;
    go_back(engine, qp, (lost->first_psn + lost->received) & psn_mask);
  }
  return true;
}

void fail_at(Engine& engine, SoftQp& qp, std::uint32_t psn, std::uint8_t syndrome,
             std::uint8_t vendor) noexcept {
  Requester& r = qp.requester;
  for (std::uint32_t i = r.head; i != r.tail; ++i) {
    const PendingWqe& pending = r.at(i);
    if (pending.packets == 0 || psn_distance(pending.last_psn(), psn) < 0) continue;
    r.head = i;
    engine.fail_send(qp, pending.index, pending.opcode, syndrome, vendor);
    return;
  }
}

void on_acknowledge(Engine& engine, SoftQp& qp, const Packet& packet) noexcept {
  Requester& r = qp.requester;
  const auto syndrome = static_cast<std::uint8_t>(packet.aeth >> 24);
  const bool positive = (syndrome & 0xe0) == 0;
  const std::uint32_t upto = positive ? (packet.psn + 1) & psn_mask : packet.psn;
  const bool answered = !resend_lost_response(engine, qp, upto);
  if (!answered) {
    // What stands before the lost response is acknowledged all the same.
    const PendingWqe* lost = unanswered_before(r, upto);
    acknowledge(engine, qp, lost->first_psn);
    return;
  }
  r.resent_for_gap = false;
  acknowledge(engine, qp, upto);
  if (positive || !qp.can_complete()) return;

  if ((syndrome & 0xe0) == aeth_rnr) {
    if (r.head == r.tail) return;
    if (qp.rts.rnr_retry != 7) {
      if (r.rnr_left == 0) return fail_at(engine, qp, packet.psn, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, 0);
      --r.rnr_left;
    }
    go_back(engine, qp, packet.psn);
    // IBTA's table of RNR timers, in units of 10 µs.
    static constexpr std::uint32_t tens_of_us[32] = {
        65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
        256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    r.deadline_ns = 0;  // it has answered: no loss is waited for
    r.rnr_until_ns = engine.now_ns() + std::uint64_t{tens_of_us[syndrome & 0x1f]} * 10'000;
    engine.start_timer(qp);
    return;
  }
  switch (syndrome) {
    case aeth_nak_sequence:
      if (r.head == r.tail) return;
      if (r.retries_left == 0)
        return fail_at(engine, qp, packet.psn, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, 0);
      --r.retries_left;
      return go_back(engine, qp, packet.psn);
    case aeth_nak_invalid_request:
      return fail_at(engine, qp, packet.psn, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, syndrome);
    case aeth_nak_remote_access:
      return fail_at(engine, qp, packet.psn, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, syndrome);
    case aeth_nak_remote_operation:
      return fail_at(engine, qp, packet.psn, MLX5_CQE_SYNDROME_REMOTE_OP_ERR, syndrome);
    default:
      return;
  }
}

// The READ that waits for its response packet number `psn`; null: none, the packet is old.
PendingWqe* waiting_for(Requester& r, std::uint32_t psn) noexcept {
  for (std::uint32_t i = r.head; i != r.tail; ++i) {
    PendingWqe& pending = r.at(i);
    if (pending.packets == 0) continue;
    if (psn_distance(pending.first_psn, psn) > 0) return nullptr;
    if (psn_distance(pending.last_psn(), psn) >= 0) return pending.is_read_or_atomic() ? &pending : nullptr;
  }
  return nullptr;
}

void on_data(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload) noexcept {
  Requester& r = qp.requester;
  PendingWqe* pending = waiting_for(r, packet.psn);
  if (pending == nullptr || pending->done || pending->emitted == 0) return;
  const bool atomic = packet.op == PacketOp::atomic_acknowledge;
  const std::int32_t ahead = psn_distance(packet.psn, (pending->first_psn + pending->received) & psn_mask);
  if (ahead < 0) return;
  if (ahead > 0 || unanswered_before(r, pending->first_psn) != nullptr) {
    resend_lost_response(engine, qp, (packet.psn + 1) & psn_mask);
    return;
  }
  r.resent_for_gap = false;
  acknowledge(engine, qp, pending->first_psn);  // everything before the request is taken, too
  if (qp.state() != QpState::rts) return;
  const auto fail = [&](std::uint8_t syndrome) { fail_at(engine, qp, pending->first_psn, syndrome, 0); };
  if (atomic != pending->is_atomic()) return fail(MLX5_CQE_SYNDROME_BAD_RESP_ERR);
  if (atomic) {
    const std::uint64_t original = packet.atomic_original;
    if (!scatter(engine, qp, *pending, 0, reinterpret_cast<const std::byte*>(&original), sizeof original))
      return fail(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    pending->received = 1;
  } else {
    const std::uint32_t k = pending->received;
    const std::uint32_t psns = psns_of(packet);
    const bool last = k + psns == pending->packets;
    const std::uint32_t offset = k * qp.mtu;
    const std::uint32_t bytes = (psns - 1) * qp.mtu + packet.payload_bytes;
    const bool says_last =
        packet.op == PacketOp::read_response_last || packet.op == PacketOp::read_response_only;
    if (k + psns > pending->packets || bytes != (last ? pending->bytes - offset : psns * qp.mtu) ||
        last != says_last)
      return fail(MLX5_CQE_SYNDROME_BAD_RESP_ERR);
    if (bytes != 0 && !scatter(engine, qp, *pending, offset, payload, bytes))
      return fail(MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    pending->received += psns;
  }
  if (pending->received == pending->packets) {
    pending->done = true;
    if (r.reads_out != 0) --r.reads_out;
    // A READ that was sent again and then answered after all need not go out once more.
    pending->emitted = 1;
  }
  acknowledge(engine, qp, (packet.psn + psns_of(packet)) & psn_mask);
}

}  // namespace

void transmit(Engine& engine, SoftQp& qp, std::uint32_t budget) noexcept {
  Requester& r = qp.requester;
  if (qp.state() != QpState::rts) return;
  if (r.rnr_until_ns != 0) return;
  const bool datagram = qp.transport == Transport::ud;
  const bool reliable = qp.transport == Transport::rc;
  bool sent = false;
  while (budget != 0) {
    if (r.cursor == r.tail) {
      if (r.next_block == r.doorbell || r.bad_wqe != 0) break;
      if (r.tail - r.head == r.ring.size() || !admit(engine, qp)) break;
    }
    PendingWqe& pending = r.at(r.cursor);
    if (pending.packets == 0) {  // NOP
      ++r.cursor;
      --budget;
      continue;
    }
    if (pending.fence && r.reads_out != 0) break;
    if (pending.is_read_or_atomic() && pending.emitted == 0 && r.reads_out >= qp.rts.reads_out) break;
    Link& link = datagram ? datagram_link(engine, qp, pending) : *qp.link;
    while (pending.emitted < pending.request_packets() && budget != 0 && link.has_room()) {
      const std::uint8_t failed =
          datagram ? emit_datagram(engine, qp, pending, link) : emit(engine, qp, pending);
      if (failed != 0) {
        postpone_failure(qp, pending, failed);
        budget = 0;
        break;
      }
      --budget;
      sent = true;
      if (pending.is_read_or_atomic()) ++r.reads_out;
    }
    if (budget == 0 && r.bad_wqe != 0) break;
    if (pending.emitted < pending.request_packets()) break;
    ++r.cursor;
    if (!reliable) r.una_psn = (pending.last_psn() + 1) & psn_mask;  // nobody acknowledges it
  }
  retire(engine, qp);
  if (sent && reliable && r.deadline_ns == 0 && qp.state() == QpState::rts) engine.start_timer(qp);
}

void on_response(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload) noexcept {
  Requester& r = qp.requester;
  if (!qp.can_complete() || r.head == r.tail) return;
  // Only of what has been sent: between the oldest unacknowledged and the newest.
  if (psn_distance(packet.psn, r.next_psn) >= 0) return;
  const std::uint32_t oldest = r.at(r.head).packets == 0 ? r.una_psn : r.at(r.head).first_psn;
  if (psn_distance(packet.psn, oldest) < 0) return;
  if (packet.op == PacketOp::acknowledge)
    on_acknowledge(engine, qp, packet);
  else
    on_data(engine, qp, packet, payload);
}

void on_timeout(Engine& engine, SoftQp& qp) noexcept {
  Requester& r = qp.requester;
  if (r.rnr_until_ns != 0 && engine.now_ns() >= r.rnr_until_ns) {
    r.rnr_until_ns = 0;
    engine.activate(qp);
  }
  if (r.deadline_ns == 0 || engine.now_ns() < r.deadline_ns) return;
  r.deadline_ns = 0;
  if (r.head == r.tail || !qp.can_complete()) return;
  const PendingWqe& oldest = r.at(r.head);
  if (r.head == r.cursor && oldest.emitted == 0 && oldest.packets != 0) {
    engine.activate(qp);  // it has not been sent yet, for want of room or for a fence
    return;
  }
  std::uint32_t psn = r.una_psn;
  if (oldest.packets != 0 && psn_distance(oldest.first_psn, psn) > 0) psn = oldest.first_psn;
  if (oldest.is_read_or_atomic()) psn = (oldest.first_psn + oldest.received) & psn_mask;
  if (r.retries_left == 0) return fail_at(engine, qp, psn, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, 0x81);
  --r.retries_left;
  r.resent_for_gap = false;
  go_back(engine, qp, psn);
  engine.start_timer(qp);
}

}  // namespace pollen::soft
