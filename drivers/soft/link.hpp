// An engine's way to one other engine: the lane it sends on, and what the peer can see of its
// memory. Without a peer (never there, ended, killed) a link swallows what it is given, like a
// cable that was pulled: timeouts and retries then take their course.
#pragma once

#include <cstdint>
#include <memory>

#include "pollen/drivers/soft/directory.hpp"
#include "pollen/drivers/soft/lane.hpp"

namespace pollen::soft {

class Link {
 public:
  // nowhere: slots for packets that go nowhere; the engine's, as its links may be made by any thread.
  Link(std::uint32_t device, std::uint32_t slot, Lane& nowhere)
      : device_(device), slot_(slot), nowhere_(nowhere), tx_(nowhere) {}
  ~Link() { drop(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  std::uint32_t device() const noexcept { return device_; }
  std::uint32_t slot() const noexcept { return slot_; }
  std::uint32_t engine_id() const noexcept { return device_ << 16 | slot_; }
  bool is_up() const noexcept { return lane_ != nullptr; }
  bool same_process() const noexcept { return same_process_; }
  const void* reader() const noexcept { return inbox_->reader(); }
  Inbox& inbox() const noexcept { return inbox_->inbox(); }

  // Looks for the peer. Throws Error only when shared memory is full.
  void connect(Directory& directory, const ProcessId& self, std::uint32_t self_engine) {
    if (is_up()) return;
    auto inbox = directory.open_inbox(device_, slot_);
    if (inbox == nullptr) return;
    Lane* lane = inbox->claim_lane(self, self_engine);
    if (lane == nullptr) return;
    inbox_ = std::move(inbox);
    lane_ = lane;
    same_process_ = inbox_->owner() == self;
    tx_ = TxLane(*lane);
  }
  bool peer_is_gone() const noexcept { return is_up() && !inbox_->is_attended(); }
  void drop() noexcept {
    if (!is_up()) return;
    InboxMapping::close_lane(*lane_);
    lane_ = nullptr;
    inbox_.reset();
    tx_ = TxLane(nowhere_);
  }

  bool has_room() noexcept { return lane_ == nullptr || tx_.has_room(); }
  Packet& packet() const noexcept { return tx_.slot().packet; }
  Slot& slot_memory() const noexcept { return tx_.slot(); }
  std::byte* payload(std::uint32_t bytes) const noexcept { return tx_.payload(bytes); }
  void commit() noexcept {
    if (lane_ != nullptr) tx_.commit();
  }
  bool references_refused() const noexcept { return lane_ == nullptr || tx_.references_refused(); }

  std::uint64_t sent = 0;  // packets given to commit, for the fault model
  bool wake_due = false;   // something was committed since the peer was last looked after

 private:
  std::uint32_t device_;
  std::uint32_t slot_;
  Lane& nowhere_;
  std::shared_ptr<InboxMapping> inbox_;
  Lane* lane_ = nullptr;
  TxLane tx_;
  bool same_process_ = false;
};

}  // namespace pollen::soft
