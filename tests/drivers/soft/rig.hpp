// Two ends of the software NIC in one thread: ports, regions, completion queues and connected QPs,
// with a progress loop that gives up in time.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "pollen/drivers/soft/soft.hpp"
#include "pollen/memory/arena.hpp"
#include "pollen/queue/qp.hpp"

namespace rig {

using namespace pollen;
using queue::Completion;
using queue::Opcode;
using queue::Sge;
using queue::Status;

inline soft::SoftOptions in_process() {
  soft::SoftOptions options;
  options.wire = soft::Wire::in_process;
  return options;
}

struct QpOptions {
  driver::QpConfig config{.transport = driver::Transport::rc,
                          .send_wrs = 64,
                          .recv_wrs = 64,
                          .send_sge = 4,
                          .recv_sge = 4,
                          .inline_bytes = 220};
  driver::InitConfig init{.remote_access = driver::all_access, .qkey = 0x11111111};
  driver::RtrConfig rtr{.path = {}, .mtu_bytes = 1024};
  driver::RtsConfig rts{};
  std::uint32_t cq_entries = 512;
  std::uint32_t signal_every = 1;
};

// One side: an engine, memory that is registered whole, two completion queues, one QP.
struct End {
  End(driver::Device& device, const QpOptions& options, std::size_t memory_bytes = 1 << 20,
      driver::Access access = driver::all_access)
      : port(device.open_port()), pd(device.create_pd()), memory(memory_bytes) {
    region = pd->register_memory(memory, access);
    send_cq_driver = port->create_cq(options.cq_entries);
    recv_cq_driver = port->create_cq(options.cq_entries);
    send_cq = std::make_unique<queue::CompletionQueue>(send_cq_driver->ring());
    recv_cq = std::make_unique<queue::CompletionQueue>(recv_cq_driver->ring());
    gid = device.query_port().gids.at(1).gid;
    add_qp(options);
  }
  ~End() {
    for (auto& one : qps) one->close(port->progress());
  }

  queue::Qp& add_qp(const QpOptions& options) {
    qps.push_back(
        std::make_unique<queue::Qp>(port->create_qp(*pd, *send_cq_driver, *recv_cq_driver, options.config),
                                    *send_cq, *recv_cq, options.config.transport, options.signal_every));
    return *qps.back();
  }
  queue::Qp& qp() { return *qps.front(); }
  Sge sge(std::size_t offset, std::uint32_t bytes) const {
    return {memory.data() + offset, bytes, region->lkey()};
  }
  queue::Remote remote(std::size_t offset) const {
    return {reinterpret_cast<std::uint64_t>(memory.data() + offset), region->rkey()};
  }
  void fill(std::size_t offset, std::size_t bytes, unsigned seed) {
    for (std::size_t i = 0; i < bytes; ++i)
      memory[offset + i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  }
  bool holds(std::size_t offset, std::size_t bytes, unsigned seed) const {
    for (std::size_t i = 0; i < bytes; ++i)
      if (memory[offset + i] != static_cast<std::byte>(i * 7 + i / 251 + seed)) return false;
    return true;
  }

  std::unique_ptr<driver::Port> port;
  std::unique_ptr<driver::Pd> pd;
  std::vector<std::byte> memory;
  std::unique_ptr<driver::Region> region;
  std::unique_ptr<driver::Cq> send_cq_driver;
  std::unique_ptr<driver::Cq> recv_cq_driver;
  std::unique_ptr<queue::CompletionQueue> send_cq;
  std::unique_ptr<queue::CompletionQueue> recv_cq;
  driver::Gid gid;
  std::vector<std::unique_ptr<queue::Qp>> qps;
  std::vector<Completion> sent;      // polled so far
  std::vector<Completion> received;  // polled so far

  void turn() {
    port->progress()();
    Completion batch[16];
    const std::uint32_t n = send_cq->poll(batch, 16);
    sent.insert(sent.end(), batch, batch + n);
    const std::uint32_t m = recv_cq->poll(batch, 16);
    received.insert(received.end(), batch, batch + m);
  }
};

inline void connect(End& a, queue::Qp& qa, End& b, queue::Qp& qb, const QpOptions& options) {
  const auto one = [&](queue::Qp& self, const End& peer, const queue::Qp& other, std::uint32_t psn,
                       std::uint32_t peer_psn) {
    driver::RtrConfig rtr = options.rtr;
    rtr.path.remote_gid = peer.gid;
    rtr.path.local_gid_index = 1;
    rtr.remote_qpn = other.qpn();
    rtr.remote_psn = peer_psn;
    driver::RtsConfig rts = options.rts;
    rts.local_psn = psn;
    self.connect(options.init, rtr, rts);
  };
  // Near the end of the 24-bit circle, so that every test crosses it.
  one(qa, b, qb, 0xfffff0, 0xfffff8);
  one(qb, a, qa, 0xfffff8, 0xfffff0);
}

struct Pair {
  explicit Pair(const QpOptions& options = {}, const soft::SoftOptions& soft = in_process(),
                std::size_t memory_bytes = 1 << 20, driver::Access access = driver::all_access)
      : driver(soft::make_driver(soft)),
        device(driver->open("")),
        a(*device, options, memory_bytes, access),
        b(*device, options, memory_bytes, access) {
    if (options.config.transport == driver::Transport::ud) {
      a.qp().activate(options.init);
      b.qp().activate(options.init);
    } else {
      connect(a, a.qp(), b, b.qp(), options);
    }
  }

  // Turns both ends until `done`, at most for ten seconds. False: it never came.
  bool until(const std::function<bool()>& done, std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!done()) {
      a.turn();
      b.turn();
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }

  std::unique_ptr<driver::Driver> driver;
  std::unique_ptr<driver::Device> device;
  End a;
  End b;
};

}  // namespace rig
