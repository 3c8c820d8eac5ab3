// One QP of a test with its memory: what an app keeps of it, and how it is opened and connected. The
// control path of an app; the data path is app.hpp.
//
// Thread rules: the worker's owner. Errors: pollen::Error.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "layout.hpp"
#include "outcome.hpp"
#include "pollen/worker/worker.hpp"
#include "rendezvous.hpp"

namespace pollen::bw {

// Slots in order, round and round.
struct SlotRing {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  std::byte* at = nullptr;

  void set(std::span<std::byte> memory) noexcept {
    begin = at = memory.data();
    end = memory.data() + memory.size();
  }
  std::byte* take(std::size_t stride_bytes) noexcept {
    std::byte* slot = at;
    at += stride_bytes;
    if (at == end) at = begin;
    return slot;
  }
};

struct RemoteRing {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t at = 0;

  std::uint64_t take(std::size_t stride_bytes) noexcept {
    const std::uint64_t slot = at;
    at += stride_bytes;
    if (at == end) at = begin;
    return slot;
  }
  std::uint64_t slots(std::size_t stride_bytes) const noexcept { return (end - begin) / stride_bytes; }
};

struct Flow {
  worker::Qp* qp = nullptr;
  // Active.
  std::uint64_t left = 0;  // messages still to be posted
  std::uint64_t posted = 0;
  std::uint64_t completed = 0;
  SlotRing source;  // sent from; of a READ, where it goes to
  RemoteRing remote;
  std::uint32_t rkey = 0;
  queue::Address to{};  // UD
  std::uint64_t trailer_address = 0;
  // Passive.
  SlotRing receives;          // the next to be posted
  SlotRing arrivals;          // the next to be looked at
  std::uint32_t to_post = 0;  // receives that were used up
  std::uint64_t received = 0;
  // What the messages of this QP carry, and the peer's, for validation.
  std::uint64_t my_key = 0;
  std::uint64_t their_key = 0;
  SlotRing check;    // READ: the next to be looked at
  SlotRing written;  // WRITE: what the peer has written to
  std::byte* trailer = nullptr;
  std::byte* trailer_source = nullptr;
};

// What a round is, for the apps of all workers of a side.
struct RoundConfig {
  TestParameters test;
  Layout layout;
  Activity activity;
  net::Role role = net::Role::client;
  std::uint32_t signal_every = 1;
  std::uint32_t mtu_bytes = 1024;
  driver::GidEntry gid{};
  std::uint16_t lid = 0;
  double messages_per_s = 0;  // of each lcore; 0: no limit
  std::optional<std::uint64_t> corrupt_message;
};

// Between the workers and the thread that controls them.
struct Shared {
  std::atomic<bool> stop_sending{false};
  std::atomic<bool> abandoned{false};  // the peer is gone: what fails from now on fails for that
};
struct alignas(128) Live {
  probe::Counter sent;
  probe::Counter received;
  std::atomic<bool> finished{false};  // has sent all it is to send
};

std::size_t arena_bytes(const RoundConfig& config) noexcept;

// Carves the memory, creates the QPs, posts receives, connects, and waits for everyone. Returns the
// moment from which all workers count.
std::uint64_t open_flows(worker::Worker& worker, const RoundConfig& config, Rendezvous& meeting,
                         std::vector<Flow>& flows, std::uint32_t& tx_depth);

// Posts the receives that were used up, and says so to the device.
void post_receives(const RoundConfig& config, std::uint32_t lkey, std::uint32_t index, Flow& flow) noexcept;

// The failure as an error that says what it means.
[[noreturn]] void fail(const worker::Worker& worker, const queue::Completion& completion);

// Everything about this worker that goes into the report.
void conclude(worker::Worker& worker, SideOutcome& side);

// WRITE: what the peer has written last, by its trailer.
void check_written(const RoundConfig& config, Flow& flow, LcoreOutcome& outcome);
void check_message(std::span<const std::byte> message, std::uint64_t key, std::uint64_t sequence,
                   unsigned qpn, LcoreOutcome& outcome);

}  // namespace pollen::bw
