#include "pollen/drivers/soft/engine.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <ctime>

#include "pollen/base/error.hpp"

namespace pollen::soft {

namespace {

constexpr std::uint64_t look_every_ns = 50'000'000;
constexpr std::uint32_t clock_every_turns = 16;

std::uint64_t clock_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

Engine::Engine(Directory& directory, RegionTable& regions, std::unique_ptr<Tap> tap, bool copy_payloads)
    : directory_(directory),
      regions_(regions),
      tap_(std::move(tap)),
      tapped_(tap_->active()),
      self_(this_process()),
      references_allowed_(!copy_payloads && !tapped_) {
  auto place = directory_.take_slot();
  slot_ = place.slot;
  inbox_ = std::move(place.inbox);
  inbox_->set_reader(&regions_);
  regions_.add_engine(&turns_);
  now_ns_ = clock_ns();
}

Engine::~Engine() {
  regions_.remove_engine(&turns_);
  links_.clear();
  inbox_->close();
  directory_.give_back(slot_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

// --- QPs --------------------------------------------------------------------------------------

std::uint32_t Engine::add_qp(SoftQp& qp) {
  std::uint32_t index;
  if (!free_qps_.empty()) {
    index = free_qps_.front();
    free_qps_.erase(free_qps_.begin());
    qps_[index] = &qp;
  } else {
    // Numbers 0 and 1 are special in InfiniBand; no engine gives them out.
    if (qps_.empty()) qps_.resize(2);
    index = static_cast<std::uint32_t>(qps_.size());
    if (index >= qps_per_engine)
      throw Error(ENOMEM, {.attempted = "create a QP",
                           .on = fmt::format("soft{}", directory_.device()),
                           .why = fmt::format("this worker has {} already", index),
                           .remedy = "Use more workers, or fewer QPs on each"});
    qps_.push_back(&qp);
  }
  return slot_ * qps_per_engine + index;
}

void Engine::remove_qp(SoftQp& qp) noexcept {
  const std::uint32_t index = qp.qpn() % qps_per_engine;
  qps_[index] = nullptr;
  free_qps_.push_back(index);  // reused last: a late packet should find nobody, not somebody else
  forget(qp);
}

void Engine::forget(SoftQp& qp) noexcept {
  std::erase(active_, &qp);
  std::erase(timed_, &qp);
  std::erase(errored_, &qp);
  qp.active = false;
  qp.timed = false;
}

SoftQp* Engine::find(std::uint32_t qpn) const noexcept {
  const std::uint32_t index = qpn % qps_per_engine;
  if (engine_of_qpn(qpn) != slot_ || index >= qps_.size()) return nullptr;
  return qps_[index];
}

// --- a turn -----------------------------------------------------------------------------------

bool Engine::progress() noexcept {
  turns_.enter();
  if (turn_++ % clock_every_turns == 0) {
    now_ns_ = clock_ns();
    run_timers();
    if (now_ns_ >= next_look_ns_) look_after_peers();
  }
  bool busy = receive();
  busy |= transmit_all();
  if (tapped_ && tap_->holds_any()) {
    now_ns_ = clock_ns();
    if (tap_->release(now_ns_)) {
      busy = true;
      for (auto& [id, link] : links_) note_commit(*link);
    }
  }
  for (SoftQp* qp : errored_) flush(*qp);
  if (!dirty_links_.empty()) wake_peers();
  turns_.leave();
  return busy;
}

bool Engine::receive() noexcept {
  std::uint32_t packets = 0;
  std::uint64_t lanes = inbox_->inbox().header.lanes_in_use.load(std::memory_order_acquire);
  while (lanes != 0) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(lanes));
    lanes &= lanes - 1;
    packets += receive_from(incoming(i));
  }
  return packets != 0;
}

Engine::Incoming& Engine::incoming(std::uint32_t lane) {
  auto& from = incoming_[lane];
  if (from == nullptr) {
    Lane& memory = inbox_->inbox().lanes[lane];
    from = std::make_unique<Incoming>(memory);
    from->sender_engine = memory.header.sender_engine;
    from->sender = {memory.header.sender_pid, memory.header.sender_start_time};
    from->memory = std::make_unique<PeerMemory>(from->sender);
  }
  return *from;
}

std::uint32_t Engine::receive_from(Incoming& from) noexcept {
  std::uint32_t packets = 0;
  for (; packets < receive_budget; ++packets) {
    const Slot* slot = from.rx.peek();
    if (slot == nullptr) break;
    const Packet packet = slot->packet;
    if (packet.payload_bytes <= max_mtu_bytes) [[likely]]
      dispatch(from, packet, from.rx.payload(*slot, packet.payload_bytes));
    from.rx.advance();
    if (from.rx.due()) from.rx.publish();
  }
  from.rx.publish();
  return packets;
}

void Engine::dispatch(const Incoming& from, const Packet& packet, const std::byte* payload) noexcept {
  SoftQp* qp = find(packet.dest_qpn);
  if (qp == nullptr || !qp->can_receive() || packet.pkey != default_pkey) return;
  const std::uint32_t sender_device = from.sender_engine >> 16;
  if (tap_->captures() && from.sender != self_ && (packet.flags & packet_by_reference) == 0)
    tap_->capture(packet, payload, sender_device, directory_.device());
  if (qp->transport == driver::Transport::ud) {
    if (packet.op != PacketOp::ud_send_only && packet.op != PacketOp::ud_send_only_imm) return;
    if ((packet.flags & packet_by_reference) != 0) return;
    const std::uint32_t index = packet.gid_index == 0 ? 0 : 1;
    return on_datagram(*this, *qp, packet, payload, device_gid(sender_device, index),
                       device_gid(directory_.device(), index));
  }
  const bool unreliable = qp->transport == driver::Transport::uc;
  if (unreliable != is_unreliable(packet.op)) return;
  if (!qp->responder.established) [[unlikely]] {
    qp->responder.established = true;
    if (qp->state_ == driver::QpState::rtr) tell(*qp, QpIncident::established);
  }
  // A NIC takes packets for a connection from its peer's address only.
  if (qp->link == nullptr || qp->link->engine_id() != from.sender_engine) return;
  if (packet.run > 1 && (packet.flags & packet_by_reference) == 0) return;
  if ((packet.flags & packet_by_reference) != 0) {
    const std::uint32_t bytes = (psns_of(packet) - 1) * qp->mtu + packet.payload_bytes;
    const bool own = packet.reference.backing == own_address_space;
    if (own)
      payload = from.sender == self_
                    ? regions_.readable(packet.reference.inode, packet.reference.offset, bytes)
                    : nullptr;
    else
      payload = from.memory->find(packet.reference, bytes);
    if (payload == nullptr) {
      if (!own) const_cast<Incoming&>(from).rx.refuse_references();
      return on_unreadable(*this, *qp, packet);
    }
  }
  if (unreliable)
    on_unreliable(*this, *qp, packet, payload);
  else if (packet.op >= PacketOp::read_response_first && packet.op <= PacketOp::atomic_acknowledge)
    on_response(*this, *qp, packet, payload);
  else
    on_request(*this, *qp, packet, payload);
}

bool Engine::transmit_all() noexcept {
  if (active_.empty()) return false;
  turn_qps_.swap(active_);
  // Another one begins each time: on a lane that is always full the first would take all of it.
  if (turn_qps_.size() > 1)
    std::rotate(turn_qps_.begin(), turn_qps_.begin() + turn_ % static_cast<std::uint32_t>(turn_qps_.size()),
                turn_qps_.end());
  for (SoftQp* qp : turn_qps_) {
    qp->active = false;
    if (!qp->can_receive()) continue;
    answer(*this, *qp);
    transmit(*this, *qp, transmit_budget);
    // Until the timer, nothing; else whatever had no room goes on in the next turn.
    if (qp->responder.owes() || (qp->requester.has_unsent() && qp->requester.rnr_until_ns == 0))
      activate(*qp);
  }
  turn_qps_.clear();
  return true;
}

// --- links ------------------------------------------------------------------------------------

Link& Engine::link_to(std::uint32_t device, std::uint32_t slot) {
  auto& link = links_[device << 16 | slot];
  if (link == nullptr) {
    link = std::make_unique<Link>(device, slot, *nowhere_);
    if (device < max_devices) link->connect(directory_, self_, id());
  }
  return *link;
}

void Engine::refresh(Link& link) {
  if (link.device() >= max_devices) return;
  if (link.peer_is_gone()) {
    tap_->forget(link);
    std::erase(dirty_links_, &link);
    link.wake_due = false;
    link.drop();
  }
  if (!link.is_up()) link.connect(directory_, self_, id());
}

bool Engine::refer(Link& link, const RegionEntry& region, std::uint64_t address,
                   Packet& packet) const noexcept {
  if (!references_allowed_ || link.references_refused()) return false;
  if (link.same_process()) {
    // The peer looks the key up again: the region may end while the packet is under way.
    if (link.reader() != &regions_) return false;
    packet.reference = {own_address_space, region.key.load(std::memory_order_relaxed),
                        address + region.shift};
  } else {
    if (region.backing_fd == own_address_space) return false;
    packet.reference = {region.backing_fd, region.backing_inode,
                        region.backing_offset + (address - region.address)};
  }
  packet.flags |= packet_by_reference;
  return true;
}

void Engine::commit(Link& link) noexcept {
  if (tapped_) [[unlikely]]
    tap_->commit(link, id(), now_ns_);
  else
    link.commit();
  note_commit(link);
}

void Engine::note_commit(Link& link) noexcept {
  if (link.is_up() && !link.wake_due && link.inbox().header.may_sleep.load(std::memory_order_relaxed) != 0) {
    link.wake_due = true;
    dirty_links_.push_back(&link);
  }
}

// Every now and then: who has gone is let go, who was not there may have come.
void Engine::look_after_peers() noexcept {
  next_look_ns_ = now_ns_ + look_every_ns;
  for (auto& [id, link] : links_) {
    if (link->peer_is_gone()) {
      tap_->forget(*link);
      std::erase(dirty_links_, link.get());
      link->drop();
      directory_.bury(link->device(), link->slot());
    } else if (!link->is_up() && link->device() < max_devices) {
      try {
        link->connect(directory_, self_, this->id());
      } catch (const Error& error) {
        events_.push_back({driver::Event::Kind::device_fatal, link->slot(), error.what()});
      }
    }
  }
  std::uint64_t lanes = inbox_->inbox().header.lanes_in_use.load(std::memory_order_acquire);
  for (; lanes != 0; lanes &= lanes - 1) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(lanes));
    if (incoming_[i] == nullptr) continue;
    const auto state = inbox_->inbox().lanes[i].header.state.load(std::memory_order_acquire);
    if (state != lane_closed && is_alive(incoming_[i]->sender)) continue;
    if (incoming_[i]->rx.peek() != nullptr) continue;  // first all that it has sent
    incoming_[i].reset();
    inbox_->free_lane(i);
  }
}

// --- timers -----------------------------------------------------------------------------------

void Engine::start_timer(SoftQp& qp) noexcept {
  if (qp.rts.timeout != 0 && qp.requester.rnr_until_ns == 0)
    qp.requester.deadline_ns = now_ns_ + (std::uint64_t{4096} << qp.rts.timeout);
  if (qp.timed) return;
  qp.timed = true;
  timed_.push_back(&qp);
}

void Engine::run_timers() noexcept {
  for (std::size_t i = 0; i < timed_.size();) {
    SoftQp& qp = *timed_[i];
    on_timeout(*this, qp);
    if (qp.requester.deadline_ns != 0 || qp.requester.rnr_until_ns != 0) {
      ++i;
      continue;
    }
    qp.timed = false;
    timed_[i] = timed_.back();
    timed_.pop_back();
  }
}

// --- completions ------------------------------------------------------------------------------

void Engine::push(SoftQp& qp, SoftCq& cq, const CqeFields& fields) noexcept {
  const bool ran_over = cq.overrun();
  if (cq.push(fields, qp.user_index) || ran_over) return;
  events_.push_back(
      {driver::Event::Kind::cq_overrun, qp.qpn(),
       fmt::format("the completion queue of QP {} ran over: it has {} entries, and more requests "
                   "were posted than that. Create it with an entry for each request under way",
                   qp.qpn(), cq.ring().entries)});
  // Every QP on the queue is broken, as on hardware.
  if (listener_ != nullptr) listener_->on_overrun(cq);
  for (SoftQp* other : qps_)
    if (other != nullptr && (&other->send_cq == &cq || &other->recv_cq == &cq)) {
      tell(*other, QpIncident::broken);
      enter_error(*other, "its completion queue ran over");
    }
}

void Engine::complete_send(SoftQp& qp, std::uint32_t index, std::uint8_t opcode,
                           std::uint32_t byte_len) noexcept {
  push(qp, qp.send_cq,
       {.qpn = qp.qpn(),
        .wqe_counter = static_cast<std::uint16_t>(index),
        .opcode = MLX5_CQE_REQ,
        .send_opcode = opcode,
        .byte_len = byte_len});
}

void Engine::fail_send(SoftQp& qp, std::uint32_t index, std::uint8_t opcode, std::uint8_t syndrome,
                       std::uint8_t vendor) noexcept {
  Requester& r = qp.requester;
  if (r.head != r.tail && r.at(r.head).index == index)
    ++r.head;
  else
    r.next_block += std::min(qp.wqe(index).blocks(), r.doorbell - r.next_block);
  r.bad_wqe = 0;
  push(qp, qp.send_cq,
       {.qpn = qp.qpn(),
        .wqe_counter = static_cast<std::uint16_t>(index),
        .opcode = MLX5_CQE_REQ_ERR,
        .send_opcode = opcode,
        .syndrome = syndrome,
        .vendor_syndrome = vendor});
  enter_error(qp, "a request failed");
}

void Engine::complete_receive(SoftQp& qp, CqeFields fields) noexcept {
  fields.qpn = qp.qpn();
  if (qp.srq != nullptr) {
    fields.wqe_counter = qp.responder.shared_wqe;
    qp.responder.holds_shared_wqe = false;
  } else {
    fields.wqe_counter = static_cast<std::uint16_t>(qp.responder.head);
    ++qp.responder.head;
  }
  push(qp, qp.recv_cq, fields);
}

void Engine::enter_error(SoftQp& qp, const char* why) noexcept {
  if (qp.state_ == driver::QpState::error) return;
  qp.state_ = driver::QpState::error;
  events_.push_back({driver::Event::Kind::qp_error, qp.qpn(),
                     fmt::format("QP {} is in the error state: {}", qp.qpn(), why)});
  errored_.push_back(&qp);
  flush(qp);
  if (qp.srq != nullptr) tell(qp, QpIncident::last_buffer);
}

void Engine::take_shared(SoftQp& qp) noexcept {
  SoftSrq& srq = *qp.srq;
  qp.responder.shared_wqe = srq.take();
  qp.responder.holds_shared_wqe = true;
  if (srq.limit == 0 || srq.available() >= srq.limit) return;
  srq.limit = 0;
  if (listener_ != nullptr) listener_->on_limit(srq);
}

void Engine::flush(SoftQp& qp) noexcept {
  Requester& r = qp.requester;
  const auto flush_send = [&](std::uint32_t index, std::uint8_t opcode) {
    push(qp, qp.send_cq,
         {.qpn = qp.qpn(),
          .wqe_counter = static_cast<std::uint16_t>(index),
          .opcode = MLX5_CQE_REQ_ERR,
          .send_opcode = opcode,
          .syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR});
  };
  for (; r.head != r.tail; ++r.head) flush_send(r.at(r.head).index, r.at(r.head).opcode);
  r.cursor = r.tail;
  r.bad_wqe = 0;
  r.deadline_ns = 0;
  r.rnr_until_ns = 0;
  while (r.next_block != r.doorbell) {
    const WqeReader wqe = qp.wqe(r.next_block);
    flush_send(r.next_block, wqe.opcode());
    r.next_block += std::min(wqe.blocks(), r.doorbell - r.next_block);
  }
  if (qp.srq != nullptr) {
    if (qp.responder.holds_shared_wqe)
      complete_receive(qp, {.opcode = MLX5_CQE_RESP_ERR, .syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR});
    return;
  }
  while (qp.recv_.entries != 0 && qp.receives() != 0)
    complete_receive(qp, {.opcode = MLX5_CQE_RESP_ERR, .syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR});
}

std::optional<driver::Event> Engine::next_event() {
  if (events_.empty()) return std::nullopt;
  driver::Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// --- sleeping ---------------------------------------------------------------------------------

bool Engine::arm() noexcept {
  InboxHeader& header = inbox_->inbox().header;
  // Its own timers keep an engine awake: what is under way is acknowledged in microseconds, or has
  // to be sent again.
  if (!timed_.empty() || !active_.empty() || (tapped_ && tap_->holds_any())) return false;
  if (wake_fd_ < 0) {
    wake_fd_ = directory_.make_wake_fd(slot_);
    if (wake_fd_ < 0) return false;
    header.wake_fd.store(wake_fd_, std::memory_order_release);
    header.may_sleep.store(1, std::memory_order_seq_cst);
  }
  header.sleeping.store(1, std::memory_order_seq_cst);
  // Whoever commits after this sees the flag, and what was committed before is seen here: both
  // sides store, pass a full fence and then load.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool pending = false;
  std::uint64_t lanes = header.lanes_in_use.load(std::memory_order_acquire);
  for (; lanes != 0 && !pending; lanes &= lanes - 1)
    pending = incoming(static_cast<std::uint32_t>(std::countr_zero(lanes))).rx.peek() != nullptr;
  if (pending) disarm();
  return !pending;
}

void Engine::disarm() noexcept {
  inbox_->inbox().header.sleeping.store(0, std::memory_order_relaxed);
  char drained[64];
  while (wake_fd_ >= 0 && read(wake_fd_, drained, sizeof drained) > 0) {
  }
}

void Engine::wake_peers() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (Link* link : dirty_links_) {
    link->wake_due = false;
    if (!link->is_up() || link->inbox().header.sleeping.exchange(0, std::memory_order_relaxed) == 0) continue;
    directory_.wake(link->device(), link->slot(), link->inbox(), link->same_process());
  }
  dirty_links_.clear();
}

}  // namespace pollen::soft
