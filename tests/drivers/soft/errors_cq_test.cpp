// Completion queues that run over, and queues that are asked too much.
#include <fmt/format.h>

#include "errors.hpp"
#include "pollen/base/error.hpp"

using namespace rig;

TEST_SUITE("soft.errors.cq") {
  TEST_CASE("a completion queue that runs over is dead, and so are all QPs on it, with an event") {
    for (const bool by_flush : {false, true}) {
      CAPTURE(by_flush);
      QpOptions options;
      Pair pair;
      RawCq small(pair.a.port->create_cq(4));
      RawCq big(pair.b.port->create_cq(64));
      RawQp first(pair.a, small.control(), small.control(), options);
      RawQp second(pair.a, small.control(), small.control(), options);
      RawQp first_peer(pair.b, big.control(), big.control(), options);
      RawQp second_peer(pair.b, big.control(), big.control(), options);
      connect_raw(first.control(), pair.a, first_peer.control(), pair.b, options);
      connect_raw(second.control(), pair.a, second_peer.control(), pair.b, options);
      for (int i = 0; i < 20; ++i) {
        RawWqe wqe(MLX5_OPCODE_RDMA_WRITE);
        wqe.remote(pair.b.remote(0).address, pair.b.region->rkey()).data(pair.a.sge(0, 64));
        first.post(wqe);
      }
      first.ring();
      if (by_flush) first.control().to_error();
      REQUIRE(pair.until([&] { return first.control().state() == QpState::error; }));
      for (int i = 0; i < 100; ++i) {
        pair.a.turn();
        pair.b.turn();
      }
      std::uint32_t seen = 0;
      while (small.next()) ++seen;
      CHECK(seen == 4);
      small.acknowledge();
      for (int i = 0; i < 100; ++i) pair.a.turn();
      CHECK_FALSE(small.next().has_value());
      CHECK(second.control().state() == QpState::error);
      const auto events = events_of(pair.a);
      bool overrun = false;
      for (const auto& event : events) overrun = overrun || event.kind == driver::Event::Kind::cq_overrun;
      CHECK(overrun);
      // Those on other queues go on.
      pair.a.fill(0, 8, 3);
      CHECK(outcome(pair, [&](auto& burst) { return burst.write(pair.a.sge(0, 8), pair.b.remote(0)); }) ==
            Status::success);
    }
  }

  TEST_CASE("a completion queue that is read in time never runs over, lap after lap") {
    QpOptions options;
    Pair pair;
    RawCq small(pair.a.port->create_cq(4));
    RawCq big(pair.b.port->create_cq(64));
    RawQp a(pair.a, small.control(), small.control(), options);
    RawQp b(pair.b, big.control(), big.control(), options);
    connect_raw(a.control(), pair.a, b.control(), pair.b, options);
    for (int round = 0; round < 100; ++round) {
      for (int i = 0; i < 4; ++i) {
        RawWqe wqe(MLX5_OPCODE_RDMA_WRITE);
        wqe.remote(pair.b.remote(0).address, pair.b.region->rkey()).data(pair.a.sge(0, 64));
        a.post(wqe);
      }
      a.ring();
      int seen = 0;
      REQUIRE(pair.until([&] {
        while (small.next()) ++seen;
        return seen == 4;
      }));
      small.acknowledge();
    }
    CHECK(a.control().state() == QpState::rts);
  }

  TEST_CASE("queues beyond the device's limits are refused in words") {
    Pair pair;
    const auto& limits = pair.device->limits();
    CHECK_THROWS_AS(pair.a.port->create_cq(0), Error);
    CHECK_THROWS_AS(pair.a.port->create_cq(limits.max_cq_entries + 1), Error);
    const auto refused = [&](const driver::QpConfig& config) {
      try {
        auto qp = pair.a.port->create_qp(*pair.a.pd, *pair.a.send_cq_driver, *pair.a.recv_cq_driver, config);
        return qp->send_ring().blocks <= queue::max_send_blocks;
      } catch (const Error& error) {
        return !error.text().remedy.empty();
      }
    };
    CHECK(refused({.send_wrs = 0}));
    CHECK(refused({.send_wrs = limits.max_send_wrs + 1}));
    CHECK(refused({.recv_wrs = limits.max_recv_wrs + 1}));
    CHECK(refused({.send_sge = limits.max_sge + 1}));
    CHECK(refused({.inline_bytes = limits.max_inline_bytes + 1}));
    // In range one by one, but not together: the ring's index has 16 bits.
    CHECK(refused({.send_wrs = limits.max_send_wrs, .inline_bytes = limits.max_inline_bytes}));
  }
}
