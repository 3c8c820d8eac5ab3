// The queue engine of the software NIC: one per worker, run by whoever polls its completion
// queues. A turn takes packets from the lanes, answers them, and sends what QPs have to send;
// nothing in it waits.
//
//   engine.cpp      turns, lanes in and out, timers, links
//   requester.cpp   send WQEs to packets; acknowledgements and READ responses to CQEs
//   responder.cpp   requests to memory, receive CQEs and answers
//
// Thread rules: one thread, from creation to end. Regions may come and go on other threads.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/soft/directory.hpp"
#include "pollen/drivers/soft/incident.hpp"
#include "pollen/drivers/soft/link.hpp"
#include "pollen/drivers/soft/peer_memory.hpp"
#include "pollen/drivers/soft/region_table.hpp"
#include "pollen/drivers/soft/soft_qp.hpp"
#include "pollen/drivers/soft/tap.hpp"

namespace pollen::soft {

class Engine {
 public:
  // All of them outlive the engine.
  Engine(Directory& directory, RegionTable& regions, std::unique_ptr<Tap> tap, bool copy_payloads);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // One turn; true when something was done.
  bool progress() noexcept;

  std::uint32_t add_qp(SoftQp& qp);  // returns its number; throws Error when there is none left
  void remove_qp(SoftQp& qp) noexcept;
  // Nothing that the engine was to do for it is left.
  void forget(SoftQp& qp) noexcept;
  SoftQp* find(std::uint32_t qpn) const noexcept;  // null: no such QP here
  // null: nobody listens.
  void set_listener(IncidentListener* listener) noexcept { listener_ = listener; }
  std::optional<driver::Event> next_event();

  int wake_fd() const noexcept { return wake_fd_; }
  bool arm() noexcept;
  void disarm() noexcept;

  // --- for the QPs ---

  RegionTable& regions() noexcept { return regions_; }
  std::uint64_t now_ns() const noexcept { return now_ns_; }
  // Links are made once and kept; an unknown place gets one that leads nowhere.
  Link& link_to(std::uint32_t device, std::uint32_t slot);
  Link& link_to(const driver::Gid& gid, std::uint32_t qpn) {
    return link_to(device_of_gid(gid), engine_of_qpn(qpn));
  }

  // Before a connection is made: the process that the link led to may be gone, and another one in
  // its place. Control path; throws Error when shared memory is full.
  void refresh(Link& link);

  // The payload of the packet that is being built, as a reference to the sender's memory if the
  // peer can see that; false: it has to be copied.
  bool refer(Link& link, const RegionEntry& region, std::uint64_t address, Packet& packet) const noexcept;
  // Sends the packet that was built in link.packet().
  void commit(Link& link) noexcept;

  void activate(SoftQp& qp) noexcept {
    if (qp.active) return;
    qp.active = true;
    active_.push_back(&qp);
  }
  void start_timer(SoftQp& qp) noexcept;

  // A CQE for a send WQE, or for the buffer at the head of the receive ring.
  void complete_send(SoftQp& qp, std::uint32_t index, std::uint8_t opcode, std::uint32_t byte_len) noexcept;
  void fail_send(SoftQp& qp, std::uint32_t index, std::uint8_t opcode, std::uint8_t syndrome,
                 std::uint8_t vendor) noexcept;
  void complete_receive(SoftQp& qp, CqeFields fields) noexcept;
  // The next buffer is the message's that begins; needs qp.receives().
  void claim_receive(SoftQp& qp) noexcept {
    if (qp.srq != nullptr && !qp.responder.holds_shared_wqe) take_shared(qp);
  }
  void tell(SoftQp& qp, QpIncident incident) noexcept {
    if (listener_ != nullptr) listener_->on_incident(qp, incident);
  }

  // The error state: everything posted is flushed, now and from now on.
  void enter_error(SoftQp& qp, const char* why) noexcept;

  // Every turn that holds on to what it looked up in the region table is counted.
  TurnCounter& turns() noexcept { return turns_; }

 private:
  friend class SoftQp;

  static constexpr std::uint32_t receive_budget = 64;   // packets of a lane per turn
  static constexpr std::uint32_t transmit_budget = 64;  // packets of a QP per turn

  struct Incoming {
    explicit Incoming(Lane& lane) : rx(lane) {}
    RxLane rx;
    std::uint32_t sender_engine = 0;
    ProcessId sender;
    std::unique_ptr<PeerMemory> memory;
  };

  std::uint32_t id() const noexcept { return directory_.device() << 16 | slot_; }
  bool receive() noexcept;
  std::uint32_t receive_from(Incoming& from) noexcept;
  Incoming& incoming(std::uint32_t lane);
  void dispatch(const Incoming& from, const Packet& packet, const std::byte* payload) noexcept;
  bool transmit_all() noexcept;
  void note_commit(Link& link) noexcept;
  void wake_peers() noexcept;
  void look_after_peers() noexcept;
  void run_timers() noexcept;
  void flush(SoftQp& qp) noexcept;
  void take_shared(SoftQp& qp) noexcept;
  void push(SoftQp& qp, SoftCq& cq, const CqeFields& fields) noexcept;

  Directory& directory_;
  RegionTable& regions_;
  const std::unique_ptr<Tap> tap_;
  const bool tapped_;
  const ProcessId self_;
  const bool references_allowed_;
  TurnCounter turns_;
  std::uint32_t slot_;
  std::shared_ptr<InboxMapping> inbox_;
  std::array<std::unique_ptr<Incoming>, max_lanes> incoming_;
  const std::unique_ptr<Lane> nowhere_ = std::make_unique_for_overwrite<Lane>();
  std::map<std::uint32_t, std::unique_ptr<Link>> links_;
  std::vector<SoftQp*> qps_;
  std::vector<std::uint32_t> free_qps_;
  std::vector<SoftQp*> active_;
  std::vector<SoftQp*> turn_qps_;  // those of this turn; active_ fills up for the next
  std::vector<SoftQp*> errored_;
  std::vector<Link*> dirty_links_;
  std::deque<driver::Event> events_;
  IncidentListener* listener_ = nullptr;
  std::vector<SoftQp*> timed_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t next_look_ns_ = 0;
  std::uint32_t turn_ = 0;
  int wake_fd_ = -1;
};

// requester.cpp
void transmit(Engine& engine, SoftQp& qp, std::uint32_t budget) noexcept;
void on_response(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload) noexcept;
void on_timeout(Engine& engine, SoftQp& qp) noexcept;

// responder.cpp
void on_request(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload) noexcept;
// UC: what comes out of order is dropped, and nothing is answered.
void on_unreliable(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload) noexcept;
// A packet came whose payload could not be had: it is as if it were lost.
void on_unreadable(Engine& engine, SoftQp& qp, const Packet& packet) noexcept;
void on_datagram(Engine& engine, SoftQp& qp, const Packet& packet, const std::byte* payload,
                 const driver::Gid& source, const driver::Gid& destination) noexcept;
void answer(Engine& engine, SoftQp& qp) noexcept;

}  // namespace pollen::soft
