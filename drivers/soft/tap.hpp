// What may happen to packets on the way out of an engine, besides being sent: a seeded fault, and
// being written to a capture. Both are off by default and then cost one test per packet.
//
// With either of them payloads are copied into packets, never passed by reference: a packet that is
// late must carry what was sent, and a capture must show it.
//
// Thread rules: a Tap belongs to one engine; several engines write to the same PcapWriter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pollen/drivers/soft/faults.hpp"
#include "pollen/drivers/soft/link.hpp"
#include "pollen/drivers/soft/pcap.hpp"
#include "pollen/drivers/soft/roce.hpp"

namespace pollen::soft {

class Tap {
 public:
  // capture: null for none.
  Tap(const FaultConfig& faults, std::shared_ptr<PcapWriter> capture)
      : faults_(faults), has_faults_(faults.any()), capture_(std::move(capture)) {}

  bool active() const noexcept { return has_faults_ || capture_ != nullptr; }
  bool captures() const noexcept { return capture_ != nullptr; }
  const FaultStatistics& statistics() const noexcept { return statistics_; }

  // Sends the packet that lies in the link's slot, or does with it what the faults say. Returns
  // how many packets went out.
  void commit(Link& link, std::uint32_t self_engine, std::uint64_t now_ns);
  // Packets that were held up and whose time has come. True when there were any.
  bool release(std::uint64_t now_ns);
  bool holds_any() const noexcept { return !held_.empty(); }
  // The link goes away, and what was to be sent on it.
  void forget(const Link& link) noexcept;

  void capture(const Packet& packet, const std::byte* payload, std::uint32_t from_device,
               std::uint32_t to_device) noexcept;

 private:
  struct Held {
    Link* link;
    std::uint64_t after_sent;  // of the link's count
    std::uint64_t due_ns;      // at the latest
    bool in_time_only;         // delayed, not overtaken: only the clock lets it go
    bool twice;
    Packet packet;
    std::vector<std::byte> payload;
  };

  void put(Link& link, const Packet& packet, std::span<const std::byte> payload);

  FaultModel faults_;
  bool has_faults_;
  std::shared_ptr<PcapWriter> capture_;
  FaultStatistics statistics_;
  std::vector<Held> held_;
};

}  // namespace pollen::soft
