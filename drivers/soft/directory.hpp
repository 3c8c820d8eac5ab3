// The software NIC's device as all processes of a user on this host share it: which engines there
// are, and the memory in which each takes packets.
//
//   <shm_dir>/softN        who holds which engine slot: max_engines × {pid, start time}
//   <shm_dir>/softN.<slot> one engine's inbox: a header and max_lanes lanes
//
// A QP number says which engine it lives on: the slot in its upper 10 bits, 14 bits below for the
// engine to give out. A GID says which device. So a packet finds its way with no registry.
//
// Whoever opens the directory removes what dead processes have left. An inbox goes with its
// process: unlinked by itself at the end, by the next one to look after a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/soft/lane.hpp"
#include "pollen/drivers/soft/options.hpp"
#include "pollen/drivers/soft/process.hpp"

namespace pollen::soft {

inline constexpr std::uint32_t max_devices = 8;
inline constexpr std::uint32_t max_engines = 1024;
inline constexpr std::uint32_t qps_per_engine = 1 << 14;
inline constexpr std::uint32_t max_lanes = 64;

constexpr std::uint32_t engine_of_qpn(std::uint32_t qpn) noexcept {
  return qpn / qps_per_engine % max_engines;
}

// GID 0 is link-local, GID 1 IPv4-mapped; both say which device it is.
driver::Gid device_gid(std::uint32_t device, std::uint32_t index) noexcept;
// The device that a GID belongs to, or max_devices.
std::uint32_t device_of_gid(const driver::Gid& gid) noexcept;

struct InboxHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t pid;
  std::uint64_t start_time;
  alignas(64) std::atomic<std::uint64_t> lanes_in_use;  // a bit per lane, set by its sender
  alignas(64) std::atomic<std::uint32_t> sleeping;      // the owner waits in epoll: see wake()
  std::atomic<std::uint32_t> may_sleep;                 // it has done so before
  std::atomic<std::int32_t> wake_fd;                    // of its process; for engines beside it
};

struct Inbox {
  alignas(4096) InboxHeader header;
  Lane lanes[max_lanes];
};

// A mapping of an inbox, one's own or a peer's. Engines of one process share one mapping.
class InboxMapping {
 public:
  InboxMapping(Inbox* inbox, int fd) noexcept : inbox_(inbox), fd_(fd) {}
  ~InboxMapping();
  InboxMapping(const InboxMapping&) = delete;
  InboxMapping& operator=(const InboxMapping&) = delete;

  Inbox& inbox() const noexcept { return *inbox_; }
  ProcessId owner() const noexcept { return {inbox_->header.pid, inbox_->header.start_time}; }

  // Of an engine in this process: the region table that it looks keys up in.
  void set_reader(const void* regions) noexcept { reader_.store(regions, std::memory_order_relaxed); }
  const void* reader() const noexcept { return reader_.load(std::memory_order_relaxed); }

  // Somebody reads it: its engine was not closed and its process lives. Reads /proc.
  bool is_attended() const noexcept;
  void close() noexcept;  // the owner's, at its end

  // Claims a lane for `sender`; its memory is there when this returns. Null: all are taken.
  // Throws Error when the shared memory is full.
  Lane* claim_lane(const ProcessId& sender, std::uint32_t sender_engine);
  // The sender's last word on the lane; the receiver frees it when it has seen everything.
  static void close_lane(Lane& lane) noexcept;
  // The receiver's: the lane can be claimed again, its memory goes back.
  void free_lane(std::uint32_t index) noexcept;

 private:
  Inbox* inbox_;
  int fd_;
  std::atomic<const void*> reader_{nullptr};
};

class Directory {
 public:
  // Throws Error when the directory can't be made or written.
  Directory(std::uint32_t device, const SoftOptions& options);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  std::uint32_t device() const noexcept { return device_; }

  struct Place {
    std::uint32_t slot;
    std::shared_ptr<InboxMapping> inbox;
  };
  // A free engine slot and an inbox of one's own. Throws Error when there is none, or no memory.
  Place take_slot();
  void give_back(std::uint32_t slot) noexcept;

  // A peer's inbox, on any device of this host; null when no such engine is there.
  std::shared_ptr<InboxMapping> open_inbox(std::uint32_t device, std::uint32_t slot);

  // A peer was found dead: its slot and its file are cleared.
  void bury(std::uint32_t device, std::uint32_t slot) noexcept;

  // What a sleeping engine waits on (Port::arm): a FIFO beside its inbox, or where nothing is
  // outside, an eventfd.
  int make_wake_fd(std::uint32_t slot) noexcept;
  void wake(std::uint32_t device, std::uint32_t slot, Inbox& inbox, bool same_process) const noexcept;

 private:
  std::string wake_path(std::uint32_t device, std::uint32_t slot) const;
  struct Table;

  std::string path(std::uint32_t device) const;
  std::string inbox_path(std::uint32_t device, std::uint32_t slot) const;
  void open_table();
  void close_table() noexcept;
  void sweep() noexcept;

  std::uint32_t device_;
  Wire wire_;
  std::string dir_;
  int table_fd_ = -1;
  Table* table_ = nullptr;
};

}  // namespace pollen::soft
