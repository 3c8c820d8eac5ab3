// The responder: executes requests in PSN order, exactly once, and answers them. It owes READ
// responses first, in the order of their requests, then one acknowledgement for everything; a
// lane that is full only delays that.
#include <algorithm>
#include <atomic>

#include "pollen/drivers/soft/engine.hpp"
#include "pollen/drivers/soft/roce.hpp"
#include "pollen/memory/copy.hpp"

namespace pollen::soft {

namespace {

using driver::Access;
using driver::QpState;
using driver::Transport;

struct Shape {
  bool request = false;
  bool send = false;
  bool write = false;
  bool first = false;
  bool last = false;
  bool imm = false;
  bool inv = false;
};

Shape shape_of(PacketOp op) noexcept {
  using enum PacketOp;
  switch (op) {
    case send_first:
      return {true, true, false, true, false, false, false};
    case send_middle:
      return {true, true, false, false, false, false, false};
    case send_last:
      return {true, true, false, false, true, false, false};
    case send_last_imm:
      return {true, true, false, false, true, true, false};
    case send_last_inv:
      return {true, true, false, false, true, false, true};
    case send_only:
      return {true, true, false, true, true, false, false};
    case send_only_imm:
      return {true, true, false, true, true, true, false};
    case send_only_inv:
      return {true, true, false, true, true, false, true};
    case write_first:
      return {true, false, true, true, false, false, false};
    case write_middle:
      return {true, false, true, false, false, false, false};
    case write_last:
      return {true, false, true, false, true, false, false};
    case write_last_imm:
      return {true, false, true, false, true, true, false};
    case write_only:
      return {true, false, true, true, true, false, false};
    case write_only_imm:
      return {true, false, true, true, true, true, false};
    case read_request:
    case cmp_swap:
    case fetch_add:
      return {true, false, false, true, true, false, false};
    default:
      return {};
  }
}

void nak(Engine& engine, SoftQp& qp, std::uint8_t syndrome) noexcept {
  Responder& s = qp.responder;
  if (qp.transport == Transport::uc) {
    s.inbound.kind = Inbound::Kind::none;  // nobody hears of it; the rest of the message is dropped, too
    return;
  }
  s.nak_due = syndrome;
  s.nak_sent = true;
  engine.activate(qp);
}

// The request can't be carried out: the peer gets the NAK, this QP is broken as well.
void refuse(Engine& engine, SoftQp& qp, std::uint8_t syndrome, const char* why) noexcept {
  nak(engine, qp, syndrome);
  if (qp.transport == Transport::uc) return;
  answer(engine, qp);
  engine.tell(qp,
              syndrome == aeth_nak_remote_access ? QpIncident::access_refused : QpIncident::request_refused);
  engine.enter_error(qp, why);
}

std::uint8_t rnr_syndrome(const SoftQp& qp) noexcept {
  return static_cast<std::uint8_t>(aeth_rnr | (qp.rtr.min_rnr_timer & 0x1f));
}

// All bytes of a packet, or of a run of them.
std::uint32_t payload_of(const SoftQp& qp, const Packet& packet) noexcept {
  return (psns_of(packet) - 1) * qp.mtu + packet.payload_bytes;
}

constexpr std::uint32_t answer_budget = 64;  // response packets of a QP per turn

enum class Scatter : std::uint8_t { done, too_long, protection };

// Writes into the buffer at the head of the receive ring, from `offset` on.
Scatter scatter(Engine& engine, const SoftQp& qp, std::uint32_t offset, const std::byte* from,
                std::uint32_t bytes) noexcept {
  const std::byte* wqe = qp.receive_wqe();
  const std::uint32_t entries = qp.receive_segments();
  const std::uint32_t pd = qp.receive_pd();
  for (std::uint32_t i = 0; i < entries && bytes != 0; ++i) {
    const DataRef data = read_data_segment(wqe + i * queue::segment_bytes);
    if (data.lkey == queue::invalid_lkey) break;
    if (offset >= data.bytes) {
      offset -= data.bytes;
      continue;
    }
    const std::uint32_t part = std::min(bytes, data.bytes - offset);
    const std::uint64_t address = data.address + offset;
    const RegionEntry* region = engine.regions().find(data.lkey, pd, address, part, Access::local_write);
    if (region == nullptr) return Scatter::protection;
    if (part <= slot_payload_bytes)
      std::memcpy(region->memory(address), from, part);
    else
      memory::copy(region->memory(address), from, part);
    from += part;
    bytes -= part;
    offset = 0;
  }
  return bytes == 0 ? Scatter::done : Scatter::too_long;
}

// The buffer at the head fails, and with it the QP.
void fail_receive(Engine& engine, SoftQp& qp, Scatter failure) noexcept {
  const bool too_long = failure == Scatter::too_long;
  engine.complete_receive(
      qp, {.opcode = MLX5_CQE_RESP_ERR,
           .syndrome = static_cast<std::uint8_t>(too_long ? MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR
                                                          : MLX5_CQE_SYNDROME_LOCAL_PROT_ERR)});
  if (qp.transport == Transport::uc)
    return engine.enter_error(qp, "a receive buffer was too short, or is not in its region");
  refuse(engine, qp, too_long ? aeth_nak_invalid_request : aeth_nak_remote_operation,
         too_long ? "a message was longer than the receive buffer" : "a receive buffer is not in its region");
}

void accept(Engine& engine, SoftQp& qp, std::uint32_t packets, bool message_ends) noexcept {
  Responder& s = qp.responder;
  s.expected_psn = (s.expected_psn + packets) & psn_mask;
  s.nak_sent = false;
  if (message_ends) s.msn = (s.msn + 1) & psn_mask;
  if (qp.transport == Transport::uc) return;
  s.ack_due = true;
  engine.activate(qp);
}

void on_send(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload,
             const Shape& shape) noexcept {
  Responder& s = qp.responder;
  if (shape.first) {
    if (qp.receives() == 0) return nak(engine, qp, rnr_syndrome(qp));
    engine.claim_receive(qp);
    s.inbound = {};
    s.inbound.kind = Inbound::Kind::send;
  }
  if (const std::uint32_t bytes = payload_of(qp, packet); bytes != 0) {
    const Scatter result = scatter(engine, qp, s.inbound.bytes, payload, bytes);
    if (result != Scatter::done) return fail_receive(engine, qp, result);
    s.inbound.bytes += bytes;
  }
  if (shape.inv && !engine.regions().invalidate(packet.imm, qp.pd))
    return refuse(engine, qp, aeth_nak_remote_access,
                  "a SEND_WITH_INV named a key that it may not invalidate");
  accept(engine, qp, psns_of(packet), shape.last);
  if (!shape.last) return;
  s.inbound.kind = Inbound::Kind::none;
  engine.complete_receive(qp, {.opcode = static_cast<std::uint8_t>(shape.imm   ? MLX5_CQE_RESP_SEND_IMM
                                                                   : shape.inv ? MLX5_CQE_RESP_SEND_INV
                                                                               : MLX5_CQE_RESP_SEND),
                               .byte_len = s.inbound.bytes,
                               .imm = packet.imm,
                               .solicited = (packet.flags & packet_solicited) != 0});
}

void on_write(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload,
              const Shape& shape) noexcept {
  Responder& s = qp.responder;
  if (shape.imm && qp.receives() == 0) return nak(engine, qp, rnr_syndrome(qp));
  if (shape.first) {
    s.inbound = {};
    s.inbound.kind = Inbound::Kind::write;
    s.inbound.expected = packet.dma_bytes;
    s.inbound.rkey = packet.rkey;
    s.inbound.address = packet.address;
    if (!driver::allows(qp.init.remote_access, Access::remote_write))
      return refuse(engine, qp, aeth_nak_remote_access, "a WRITE came to a QP without remote write access");
    if (packet.dma_bytes != 0 && engine.regions().find(packet.rkey, qp.pd, packet.address, packet.dma_bytes,
                                                       Access::remote_write) == nullptr)
      return refuse(engine, qp, aeth_nak_remote_access, "a WRITE named memory that its rkey does not open");
  }
  Inbound& in = s.inbound;
  const std::uint32_t rest = in.expected - in.bytes;
  const std::uint32_t bytes = payload_of(qp, packet);
  if (bytes > rest || (shape.last && bytes != rest))
    return refuse(engine, qp, aeth_nak_invalid_request, "a WRITE's packets do not add up to its length");
  if (bytes != 0) {
    // Again for each packet: the region may have been ended since the first.
    const std::uint64_t address = in.address + in.bytes;
    const RegionEntry* region = engine.regions().find(in.rkey, qp.pd, address, bytes, Access::remote_write);
    if (region == nullptr)
      return refuse(engine, qp, aeth_nak_remote_access, "a WRITE's region was ended in the middle of it");
    memory::copy(region->memory(address), payload, bytes);
    in.bytes += bytes;
  }
  accept(engine, qp, psns_of(packet), shape.last);
  if (!shape.last) return;
  in.kind = Inbound::Kind::none;
  if (!shape.imm) return;
  engine.claim_receive(qp);
  engine.complete_receive(qp, {.opcode = MLX5_CQE_RESP_WR_IMM,
                               .byte_len = in.bytes,
                               .imm = packet.imm,
                               .solicited = (packet.flags & packet_solicited) != 0});
}

std::uint32_t unsent_jobs(const Responder& s) noexcept { return s.job_tail - s.job_head; }

void queue_job(Engine& engine, SoftQp& qp, const ResponseJob& job) noexcept {
  Responder& s = qp.responder;
  s.job(s.job_tail++) = job;
  engine.activate(qp);
}

// False: refused, nothing is left to do.
bool check_read(Engine& engine, SoftQp& qp, const Packet& packet) noexcept {
  if (!driver::allows(qp.init.remote_access, Access::remote_read)) {
    refuse(engine, qp, aeth_nak_remote_access, "a READ came to a QP without remote read access");
    return false;
  }
  if (packet.dma_bytes != 0 && engine.regions().find(packet.rkey, qp.pd, packet.address, packet.dma_bytes,
                                                     Access::remote_read) == nullptr) {
    refuse(engine, qp, aeth_nak_remote_access, "a READ named memory that its rkey does not open");
    return false;
  }
  return true;
}

std::uint32_t response_packets(const SoftQp& qp, const Packet& packet) noexcept {
  return packet.dma_bytes == 0 ? 1 : (packet.dma_bytes - 1) / qp.mtu + 1;
}

void on_read(Engine& engine, SoftQp& qp, const Packet& packet) noexcept {
  if (unsent_jobs(qp.responder) - qp.responder.repeats >= qp.rtr.reads_in)
    return refuse(engine, qp, aeth_nak_invalid_request, "more READs and atomics came than the QP agreed to");
  if (!check_read(engine, qp, packet)) return;
  const std::uint32_t packets = response_packets(qp, packet);
  queue_job(engine, qp, {packet.psn, packets, 0, packet.rkey, packet.address, packet.dma_bytes, false, 0});
  accept(engine, qp, packets, true);
  qp.responder.ack_due = false;  // the response acknowledges
}

void on_atomic(Engine& engine, SoftQp& qp, const Packet& packet) noexcept {
  if (unsent_jobs(qp.responder) - qp.responder.repeats >= qp.rtr.reads_in)
    return refuse(engine, qp, aeth_nak_invalid_request, "more READs and atomics came than the QP agreed to");
  if (packet.address % sizeof(std::uint64_t) != 0)
    return refuse(engine, qp, aeth_nak_invalid_request, "an atomic's address is not a multiple of 8");
  const RegionEntry* region = driver::allows(qp.init.remote_access, Access::remote_atomic)
                                  ? engine.regions().find(packet.rkey, qp.pd, packet.address,
                                                          sizeof(std::uint64_t), Access::remote_atomic)
                                  : nullptr;
  if (region == nullptr)
    return refuse(engine, qp, aeth_nak_remote_access, "an atomic named memory that its rkey does not open");
  std::atomic_ref<std::uint64_t> value(*reinterpret_cast<std::uint64_t*>(region->memory(packet.address)));
  std::uint64_t original = packet.atomic.compare;
  if (packet.op == PacketOp::fetch_add)
    original = value.fetch_add(packet.atomic.swap_add, std::memory_order_acq_rel);
  else
    value.compare_exchange_strong(original, packet.atomic.swap_add, std::memory_order_acq_rel);
  queue_job(engine, qp, {packet.psn, 1, 0, packet.rkey, packet.address, sizeof original, true, original});
  qp.responder.answer(qp.responder.answer_tail++) = {packet.psn, original};
  accept(engine, qp, 1, true);
  qp.responder.ack_due = false;
}

// A request that was executed before: the answer was lost, or is late.
void on_duplicate(Engine& engine, SoftQp& qp, const Packet& packet) noexcept {
  Responder& s = qp.responder;
  switch (packet.op) {
    case PacketOp::read_request:
      // Reading again is harmless; what is asked for may be a part. Not more than were executed.
      if (s.repeats >= qp.rtr.reads_in) return;
      if (psn_distance((packet.psn + response_packets(qp, packet)) & psn_mask, s.expected_psn) > 0) return;
      if (!check_read(engine, qp, packet)) return;
      queue_job(engine, qp,
                {packet.psn, response_packets(qp, packet), 0, packet.rkey, packet.address, packet.dma_bytes,
                 false, 0, true});
      ++s.repeats;
      return;
    case PacketOp::cmp_swap:
    case PacketOp::fetch_add: {
      // Executing again would not be: the answer is kept. Repeats don't push it out, since there is one
      // place for each that the peer may still wait for.
      if (s.repeats >= qp.rtr.reads_in) return;
      const auto kept = std::min(s.answer_tail, static_cast<std::uint32_t>(s.answers.size()));
      for (std::uint32_t i = s.answer_tail; i-- != s.answer_tail - kept;) {
        const AtomicAnswer kept_answer = s.answer(i);
        if (kept_answer.psn != packet.psn) continue;
        queue_job(engine, qp,
                  {packet.psn, 1, 0, packet.rkey, packet.address, sizeof kept_answer.original, true,
                   kept_answer.original, true});
        ++s.repeats;
        return;
      }
      return;
    }
    default:
      s.ack_due = true;
      engine.activate(qp);
  }
}

// Sends the response packet that is next. False: the lane is full, or the QP is broken.
bool send_response(Engine& engine, SoftQp& qp, ResponseJob& job) noexcept {
  Link& link = *qp.link;
  if (!link.has_room()) return false;
  std::uint32_t psns = 1;
  Packet& packet = link.packet();
  packet = {};
  packet.pkey = default_pkey;
  packet.dest_qpn = qp.rtr.remote_qpn;
  packet.gid_index = static_cast<std::uint8_t>(qp.rtr.path.local_gid_index);
  packet.psn = (job.psn + job.sent) & psn_mask;
  packet.aeth = std::uint32_t{aeth_ack} << 24 | qp.responder.msn;
  if (job.is_atomic) {
    packet.op = PacketOp::atomic_acknowledge;
    packet.atomic_original = job.original;
  } else {
    const std::uint32_t offset = job.sent * qp.mtu;
    const std::uint32_t rest = std::min(job.bytes - offset, std::min(max_run_bytes, qp.mtu * 255));
    const std::uint64_t address = job.address + offset;
    const RegionEntry* region = nullptr;
    if (rest != 0) {
      region = engine.regions().find(job.rkey, qp.pd, address, rest, Access::remote_read);
      if (region == nullptr) {
        qp.responder.job_head = qp.responder.job_tail;
        qp.responder.repeats = 0;
        refuse(engine, qp, aeth_nak_remote_access, "a READ's region was ended in the middle of it");
        return false;
      }
    }
    std::uint32_t bytes = rest;
    if (rest > slot_payload_bytes && engine.refer(link, *region, address, packet)) {
      psns = (rest - 1) / qp.mtu + 1;
      packet.run = static_cast<std::uint8_t>(psns);
      bytes = rest - (psns - 1) * qp.mtu;
    } else {
      bytes = std::min(rest, qp.mtu);
      if (bytes != 0) memory::copy(link.payload(bytes), region->memory(address), bytes);
    }
    packet.payload_bytes = static_cast<std::uint16_t>(bytes);
    const bool first = job.sent == 0;
    const bool last = job.sent + psns == job.packets;
    packet.op = first ? (last ? PacketOp::read_response_only : PacketOp::read_response_first)
                      : (last ? PacketOp::read_response_last : PacketOp::read_response_middle);
  }
  engine.commit(link);
  job.sent += psns;
  return true;
}

bool send_acknowledge(Engine& engine, SoftQp& qp, std::uint8_t syndrome, std::uint32_t psn) noexcept {
  Link& link = *qp.link;
  if (!link.has_room()) return false;
  Packet& packet = link.packet();
  packet = {};
  packet.op = PacketOp::acknowledge;
  packet.pkey = default_pkey;
  packet.dest_qpn = qp.rtr.remote_qpn;
  packet.gid_index = static_cast<std::uint8_t>(qp.rtr.path.local_gid_index);
  packet.psn = psn;
  packet.aeth = std::uint32_t{syndrome} << 24 | qp.responder.msn;
  engine.commit(link);
  return true;
}

}  // namespace

void on_request(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload) noexcept {
  Responder& s = qp.responder;
  const Shape shape = shape_of(packet.op);
  if (!shape.request) return;
  const std::int32_t ahead = psn_distance(packet.psn, s.expected_psn);
  if (ahead < 0) return on_duplicate(engine, qp, packet);
  if (ahead > 0) {
    // A gap. One NAK brings the sender back; the rest of what is under way would only add more.
    if (!s.nak_sent) nak(engine, qp, aeth_nak_sequence);
    return;
  }
  if (!shape.send && !shape.write) {
    if (s.inbound.kind != Inbound::Kind::none)
      return refuse(engine, qp, aeth_nak_invalid_request, "a READ or atomic came in the middle of a message");
    return packet.op == PacketOp::read_request ? on_read(engine, qp, packet) : on_atomic(engine, qp, packet);
  }
  const Inbound::Kind kind = shape.send ? Inbound::Kind::send : Inbound::Kind::write;
  if (shape.first != (s.inbound.kind == Inbound::Kind::none) || (!shape.first && s.inbound.kind != kind))
    return refuse(engine, qp, aeth_nak_invalid_request, "a message's packets came in an impossible order");
  // All but the last are full; the last holds something unless it is the only one.
  if (packet.payload_bytes > qp.mtu || (!shape.last && packet.payload_bytes != qp.mtu) ||
      (shape.last && !shape.first && packet.payload_bytes == 0))
    return refuse(engine, qp, aeth_nak_invalid_request,
                  "a packet's length does not fit its place in the message");
  if (shape.send)
    on_send(engine, qp, packet, payload, shape);
  else
    on_write(engine, qp, packet, payload, shape);
}

void on_unreliable(Engine& engine, SoftQp& qp, const Packet& received, const std::byte* payload) noexcept {
  Responder& s = qp.responder;
  Packet packet = received;
  packet.op = reliable_twin(received.op);
  const Shape shape = shape_of(packet.op);
  // A gap: something was lost, and with it the message under way.
  if (packet.psn != s.expected_psn) s.inbound.kind = Inbound::Kind::none;
  s.expected_psn = packet.psn;
  const Inbound::Kind kind = shape.send ? Inbound::Kind::send : Inbound::Kind::write;
  const bool fits = shape.first == (s.inbound.kind == Inbound::Kind::none) &&
                    (shape.first || s.inbound.kind == kind) && packet.payload_bytes <= qp.mtu &&
                    (shape.last || packet.payload_bytes == qp.mtu);
  if (!fits && shape.first) s.inbound.kind = Inbound::Kind::none;
  if (!fits && !shape.first) {
    s.inbound.kind = Inbound::Kind::none;
  } else if (shape.send) {
    on_send(engine, qp, packet, payload, shape);
  } else if (shape.write) {
    on_write(engine, qp, packet, payload, shape);
  }
  s.expected_psn = (packet.psn + 1) & psn_mask;
}

void on_unreadable(Engine& engine, SoftQp& qp, const Packet& packet) noexcept {
  if (shape_of(packet.op).request && !qp.responder.nak_sent) nak(engine, qp, aeth_nak_sequence);
}

void on_datagram(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload,
                 const driver::Gid& source, const driver::Gid& destination) noexcept {
  // Whatever does not fit is dropped in silence: that is what a datagram is.
  if (packet.rkey != qp.init.qkey || qp.receives() == 0 || packet.payload_bytes > qp.mtu) return;
  std::byte grh[grh_bytes];
  Addressing addressing;
  addressing.source = source;
  addressing.destination = destination;
  if (!make_grh(addressing, packet.op, packet.payload_bytes, grh)) return;
  engine.claim_receive(qp);
  Scatter result = scatter(engine, qp, 0, grh, sizeof grh);
  if (result == Scatter::done && packet.payload_bytes != 0)
    result = scatter(engine, qp, sizeof grh, payload, packet.payload_bytes);
  if (result != Scatter::done) {
    const bool too_long = result == Scatter::too_long;
    engine.complete_receive(
        qp, {.opcode = MLX5_CQE_RESP_ERR,
             .syndrome = static_cast<std::uint8_t>(too_long ? MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR
                                                            : MLX5_CQE_SYNDROME_LOCAL_PROT_ERR)});
    engine.enter_error(qp, "a datagram did not fit its receive buffer");
    return;
  }
  engine.complete_receive(
      qp, {.opcode = static_cast<std::uint8_t>(
               packet.op == PacketOp::ud_send_only_imm ? MLX5_CQE_RESP_SEND_IMM : MLX5_CQE_RESP_SEND),
           .byte_len = packet.payload_bytes + static_cast<std::uint32_t>(sizeof grh),
           .imm = packet.imm,
           .src_qpn = packet.dma_bytes & psn_mask,
           .grh = true,
           .solicited = (packet.flags & packet_solicited) != 0});
}

void answer(Engine& engine, SoftQp& qp) noexcept {
  Responder& s = qp.responder;
  if (!qp.can_receive()) return;
  for (std::uint32_t budget = answer_budget; s.job_head != s.job_tail; ++s.job_head) {
    ResponseJob& job = s.job(s.job_head);
    while (job.sent < job.packets)
      if (budget-- == 0 || !send_response(engine, qp, job)) return;
    s.repeats -= job.repeat;
  }
  if (s.nak_due != 0) {
    if (!send_acknowledge(engine, qp, s.nak_due, s.expected_psn)) return;
    s.nak_due = 0;
    s.ack_due = false;
  }
  if (s.ack_due) {
    if (!send_acknowledge(engine, qp, aeth_ack, (s.expected_psn - 1) & psn_mask)) return;
    s.ack_due = false;
  }
}

}  // namespace pollen::soft
