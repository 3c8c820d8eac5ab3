#include "pollen/drivers/soft/tap.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace pollen::soft {

namespace {

// A packet that others were to overtake goes on when nothing comes to overtake it.
constexpr std::uint64_t longest_hold_ns = 200'000;

Addressing addressing_of(const Packet& packet, std::uint32_t from_device, std::uint32_t to_device) {
  Addressing addressing;
  const std::uint32_t index = packet.gid_index == 0 ? 0 : 1;
  addressing.source = device_gid(from_device, index);
  addressing.destination = device_gid(to_device, index);
  addressing.source_mac = {0x02, 'p', 'l', 'n', 0, static_cast<std::uint8_t>(from_device)};
  addressing.destination_mac = {0x02, 'p', 'l', 'n', 0, static_cast<std::uint8_t>(to_device)};
  return addressing;
}

// What the receiver's NIC would do with the frame after a bit of it was flipped.
bool is_taken_damaged(const Packet& packet, std::span<const std::byte> payload, const Addressing& addressing,
                      std::uint32_t bit) {
  std::array<std::byte, max_frame_bytes + 64> frame;
  const std::size_t bytes = encode(packet, payload, addressing, frame);
  if (bytes == 0) return true;
  const auto whole = std::span(frame).first(bytes);
  flip_bit(whole, bit);
  const Decoded decoded = decode(whole);
  if (!decoded) return false;
  // Bits that no check covers, and that mean nothing to the transport: MACs, TTL, traffic class.
  return decoded.packet.psn == packet.psn && decoded.packet.dest_qpn == packet.dest_qpn &&
         std::ranges::equal(decoded.payload, payload);
}

}  // namespace

void Tap::put(Link& link, const Packet& packet, std::span<const std::byte> payload) {
  if (!link.has_room()) return;  // lost on a full link: the transport gets over it
  link.packet() = packet;
  if (!payload.empty())
    std::memcpy(link.payload(static_cast<std::uint32_t>(payload.size())), payload.data(), payload.size());
  link.commit();
}

void Tap::commit(Link& link, std::uint32_t self_engine, std::uint64_t now_ns) {
  const Packet& packet = link.packet();
  const std::span payload(link.payload(packet.payload_bytes), packet.payload_bytes);
  if (capture_ != nullptr) capture(packet, payload.data(), self_engine >> 16, link.device());
  const std::uint64_t n = link.sent++;
  if (!has_faults_) return link.commit();

  const Decision decision = faults_.decide(std::uint64_t{self_engine} << 32 | link.engine_id(), n);
  statistics_.count(decision);
  if (decision.drop) return;
  const bool damaged =
      decision.corrupt_bit &&
      !is_taken_damaged(packet, payload, addressing_of(packet, self_engine >> 16, link.device()),
                        *decision.corrupt_bit);
  if (decision.hold_packets != 0 || decision.delay_ns != 0) {
    if (damaged && !decision.duplicate) return;
    held_.push_back({.link = &link,
                     .after_sent = link.sent + decision.hold_packets,
                     .due_ns = now_ns + (decision.delay_ns != 0 ? decision.delay_ns : longest_hold_ns),
                     .in_time_only = decision.delay_ns != 0,
                     .twice = decision.duplicate && !damaged,
                     .packet = packet,
                     .payload = {payload.begin(), payload.end()}});
    return;
  }
  if (decision.duplicate && !damaged) {
    const Packet again = packet;
    const std::vector<std::byte> copy(payload.begin(), payload.end());
    link.commit();
    put(link, again, copy);
  } else if (!damaged || decision.duplicate) {
    link.commit();
  }
}

bool Tap::release(std::uint64_t now_ns) {
  bool any = false;
  for (std::size_t i = 0; i < held_.size();) {
    Held& held = held_[i];
    const bool overtaken = !held.in_time_only && held.link->sent >= held.after_sent;
    if ((!overtaken && now_ns < held.due_ns) || !held.link->has_room()) {
      ++i;
      continue;
    }
    put(*held.link, held.packet, held.payload);
    if (held.twice) put(*held.link, held.packet, held.payload);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    any = true;
  }
  return any;
}

void Tap::forget(const Link& link) noexcept {
  std::erase_if(held_, [&](const Held& held) { return held.link == &link; });
}

void Tap::capture(const Packet& packet, const std::byte* payload, std::uint32_t from_device,
                  std::uint32_t to_device) noexcept {
  std::array<std::byte, max_frame_bytes + 64> frame;
  const std::size_t bytes =
      encode(packet, {payload, packet.payload_bytes}, addressing_of(packet, from_device, to_device), frame);
  if (bytes == 0) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  capture_->write(static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count()),
                  std::span(frame).first(bytes));
}

}  // namespace pollen::soft
