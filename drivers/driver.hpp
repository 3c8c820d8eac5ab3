// The driver boundary. All drivers read and write the same rings (runtime/queue/format.hpp); what
// differs is who creates them and who is told of a doorbell.
//
//   Driver   a kind of device: finds them, opens them
//   Device   an open device of this process: limits, ports, protection domains, regions
//   Port     one worker's share of a device: its own UAR and engine, its CQs and QPs
//
// Control path only: ordinary virtual interfaces, which throw Error. The data path has two hooks
// at burst granularity: the doorbell (queue/doorbell.hpp) and Progress.
//
// Ownership: whoever holds the unique_ptr. A Device outlives its Ports and regions, a Port its
// queues, a CQ the QPs on it. Thread rules: a Port and all that it made belong to one thread.
// Device and Driver may be used from several threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pollen/queue/completion_queue.hpp"
#include "pollen/queue/recv_queue.hpp"
#include "pollen/queue/send_queue.hpp"
#include "pollen/queue/work_request.hpp"

namespace pollen::driver {

enum class Transport : std::uint8_t { rc, uc, ud };
enum class QpState : std::uint8_t { reset, init, rtr, rts, sqd, sqe, error };
enum class GidType : std::uint8_t { infiniband, roce_v1, roce_v2 };
enum class LinkLayer : std::uint8_t { infiniband, ethernet };

std::string_view name(Transport transport) noexcept;
std::string_view name(QpState state) noexcept;
std::string_view name(GidType type) noexcept;

// What a region lets others do. Reading it locally needs nothing.
enum class Access : std::uint32_t {
  none = 0,
  local_write = 1,
  remote_write = 2,
  remote_read = 4,
  remote_atomic = 8,
  remote_invalidate = 16,  // a peer's SEND_WITH_INV may end the rkey
  relaxed_ordering = 32,
};
constexpr Access operator|(Access a, Access b) noexcept {
  return static_cast<Access>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
constexpr bool allows(Access have, Access want) noexcept {
  return (static_cast<std::uint32_t>(have) & static_cast<std::uint32_t>(want)) ==
         static_cast<std::uint32_t>(want);
}
inline constexpr Access all_access =
    Access::local_write | Access::remote_write | Access::remote_read | Access::remote_atomic;

struct Gid {
  std::array<std::uint8_t, 16> bytes{};

  bool operator==(const Gid&) const = default;
  bool is_zero() const noexcept { return *this == Gid{}; }
  bool is_link_local() const noexcept { return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }
  bool is_ipv4_mapped() const noexcept;
};
std::string to_string(const Gid& gid);  // "::ffff:10.0.0.1", "fe80::1"

struct GidEntry {
  std::uint32_t index;
  Gid gid;
  GidType type;
};

struct PortInfo {
  bool active = false;
  LinkLayer link_layer = LinkLayer::ethernet;
  std::uint32_t mtu_bytes = 0;  // of an RDMA packet's payload: 256 … 4096
  std::uint16_t lid = 0;
  double gbit_per_s = 0;  // 0: not known
  bool needs_grh = true;  // packets carry a global header: always on Ethernet
  std::vector<GidEntry> gids;
};

struct Limits {
  std::uint32_t max_qps = 0;
  std::uint32_t max_send_wrs = 0;  // basic blocks of a send ring
  std::uint32_t max_recv_wrs = 0;
  std::uint32_t max_sge = 0;
  std::uint32_t max_inline_bytes = 0;
  std::uint32_t max_cqs = 0;
  std::uint32_t max_cq_entries = 0;
  std::uint64_t max_region_bytes = 0;
  std::uint32_t max_message_bytes = 0;
  std::uint8_t max_reads_out = 0;  // outstanding READs and atomics as requester
  std::uint8_t max_reads_in = 0;   // as responder
};

struct DeviceInfo {
  std::string name;         // "mlx5_0", "soft0"
  std::string driver;       // "mlx5", "verbs", "soft"
  std::string description;  // a label for reports: what the device is, in words
  int numa_node = -1;       // -1: none
};

// Memory that other processes can map: what a software NIC needs to copy only once. An arena has
// it (memory/arena.hpp).
struct SharedBacking {
  int fd = -1;
  std::uint64_t offset = 0;  // of the region's first byte in the file
};

class Region {
 public:
  virtual ~Region() = default;
  const std::byte* address() const noexcept { return address_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint32_t lkey() const noexcept { return lkey_; }
  std::uint32_t rkey() const noexcept { return rkey_; }

 protected:
  std::byte* address_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::uint32_t lkey_ = 0;
  std::uint32_t rkey_ = 0;
};

class Pd {
 public:
  virtual ~Pd() = default;
  // The memory stays the caller's and must outlive the region.
  virtual std::unique_ptr<Region> register_memory(std::span<std::byte> memory, Access access,
                                                  SharedBacking backing = {}) = 0;
};

class Cq {
 public:
  virtual ~Cq() = default;
  const queue::CqRing& ring() const noexcept { return ring_; }

 protected:
  queue::CqRing ring_;
};

struct QpConfig {
  Transport transport = Transport::rc;
  std::uint32_t send_wrs = 128;  // requests of the largest size that max_inline_bytes and max_sge allow
  std::uint32_t recv_wrs = 128;
  std::uint32_t send_sge = 1;
  std::uint32_t recv_sge = 1;
  std::uint32_t inline_bytes = 0;
};

// A route to a peer's QP. Only what the transport needs is looked at.
struct PathConfig {
  Gid remote_gid;
  std::uint32_t local_gid_index = 0;
  std::uint16_t remote_lid = 0;
  std::uint8_t hop_limit = 64;
  std::uint8_t traffic_class = 0;
  std::uint8_t service_level = 0;
};

struct RtrConfig {
  PathConfig path;  // RC, UC
  std::uint32_t remote_qpn = 0;
  std::uint32_t remote_psn = 0;
  std::uint32_t mtu_bytes = 1024;
  std::uint8_t reads_in = 16;
  std::uint8_t min_rnr_timer = 12;  // the field's code: 12 = 0.64 ms
};

struct RtsConfig {
  std::uint32_t local_psn = 0;
  std::uint8_t reads_out = 16;
  std::uint8_t timeout = 14;  // 4.096 µs × 2^timeout; 0: never
  std::uint8_t retry_count = 7;
  std::uint8_t rnr_retry = 7;  // 7: without limit
};

struct InitConfig {
  Access remote_access = Access::none;  // what peers may do through this QP: RC, UC
  std::uint32_t qkey = 0;               // UD
};

class Qp {
 public:
  virtual ~Qp() = default;
  std::uint32_t qpn() const noexcept { return send_.qpn; }
  const queue::SendRing& send_ring() const noexcept { return send_; }
  const queue::RecvRing& recv_ring() const noexcept { return recv_; }

  virtual void to_init(const InitConfig& config) = 0;
  virtual void to_rtr(const RtrConfig& config) = 0;
  virtual void to_rts(const RtsConfig& config) = 0;
  virtual void to_error() = 0;  // everything posted is flushed
  virtual void to_reset() = 0;
  virtual QpState state() const = 0;

 protected:
  queue::SendRing send_;
  queue::RecvRing recv_;
};

// Called once per turn of a worker's loop; null function: the device needs none. Returns true
// when something was done.
struct Progress {
  using Function = bool (*)(void* context) noexcept;
  Function function = nullptr;
  void* context = nullptr;

  bool operator()() const noexcept { return function != nullptr && function(context); }
};

struct Event {
  enum class Kind : std::uint8_t { port_up, port_down, gid_change, qp_error, cq_overrun, device_fatal };
  Kind kind;
  std::uint32_t number;  // QPN, or port
  std::string text;      // in words, with the remedy where there is one
};

class Port {
 public:
  virtual ~Port() = default;
  virtual std::unique_ptr<Cq> create_cq(std::uint32_t entries) = 0;
  virtual std::unique_ptr<Qp> create_qp(Pd& pd, Cq& send_cq, Cq& recv_cq, const QpConfig& config) = 0;
  // The segment that UD sends carry; good for as long as the port is.
  virtual queue::Address create_address(Pd& pd, const PathConfig& path, std::uint32_t qpn,
                                        std::uint32_t qkey) = 0;
  virtual Progress progress() noexcept = 0;
  virtual std::optional<Event> next_event() = 0;

  // For a worker that would rather sleep than poll. arm(): from now on `wake_fd` becomes readable
  // when there is something to poll; false: there is already. disarm() afterwards.
  virtual int wake_fd() const noexcept = 0;  // -1: the port can't wake anyone
  virtual bool arm() noexcept = 0;
  virtual void disarm() noexcept = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const noexcept = 0;
  virtual const Limits& limits() const noexcept = 0;
  virtual PortInfo query_port(std::uint32_t port = 1) const = 0;
  virtual std::unique_ptr<Pd> create_pd() = 0;
  virtual std::unique_ptr<Port> open_port(std::uint32_t port = 1) = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual std::vector<DeviceInfo> devices() = 0;
  // Empty name: the first device. Throws Error(ENODEV) that lists the devices there are.
  virtual std::unique_ptr<Device> open(const std::string& device) = 0;
};

}  // namespace pollen::driver
