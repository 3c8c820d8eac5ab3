// States, flushes, and peers that are not there.
#include <fmt/format.h>

#include "errors.hpp"
#include "pollen/base/error.hpp"

using namespace rig;

TEST_SUITE("soft.errors.state") {
  TEST_CASE("states out of order are refused in a sentence that names both states") {
    QpOptions options;
    auto driver = soft::make_driver(in_process());
    auto device = driver->open("");
    End end(*device, options);
    driver::Qp& qp = end.qp().control();
    const auto refused = [&](const std::function<void()>& move, const char* why) {
      try {
        move();
        FAIL("it was allowed");
      } catch (const Error& error) {
        CHECK(error.code().value() == EINVAL);
        CAPTURE(error.what());
        CHECK(std::string(error.what()).find(why) != std::string::npos);
      }
    };
    driver::RtrConfig rtr{.path = {}, .mtu_bytes = 1024};
    rtr.path.remote_gid = end.gid;
    refused([&] { qp.to_rtr(rtr); }, "it is in reset, not in init");
    refused([&] { qp.to_rts({}); }, "it is in reset, not in rtr");
    qp.to_init({});
    refused([&] { qp.to_init({}); }, "it is in init, not in reset");
    refused([&] { qp.to_rts({}); }, "it is in init, not in rtr");
    for (const std::uint32_t mtu : {0U, 1U, 128U, 1000U, 8192U, 0x80000000U}) {
      driver::RtrConfig odd = rtr;
      odd.mtu_bytes = mtu;
      refused([&] { qp.to_rtr(odd); }, "does not exist");
      CHECK(qp.state() == QpState::init);
    }
    driver::RtrConfig odd = rtr;
    odd.reads_in = 17;
    refused([&] { qp.to_rtr(odd); }, "17 is beyond 16");
    odd = rtr;
    odd.remote_qpn = 1 << 24;
    refused([&] { qp.to_rtr(odd); }, "beyond");
    odd = rtr;
    odd.min_rnr_timer = 32;
    refused([&] { qp.to_rtr(odd); }, "beyond");
    qp.to_rtr(rtr);
    refused([&] { qp.to_rts({.retry_count = 8}); }, "beyond 7");
    refused([&] { qp.to_rts({.rnr_retry = 8}); }, "beyond 7");
    refused([&] { qp.to_rts({.timeout = 32}); }, "beyond 31");
    refused([&] { qp.to_rts({.reads_out = 17}); }, "beyond 16");
    CHECK(qp.state() == QpState::rtr);
    qp.to_rts({});
    CHECK(qp.state() == QpState::rts);
    qp.to_error();
    refused([&] { qp.to_rts({}); }, "it is in error");
    qp.to_reset();
    CHECK(qp.state() == QpState::reset);
  }

  TEST_CASE("what is posted before rts waits for it") {
    QpOptions options;
    auto driver = soft::make_driver(in_process());
    auto device = driver->open("");
    End a(*device, options);
    End b(*device, options);
    a.fill(0, 64, 1);
    a.qp().control().to_init(options.init);
    a.qp().send_burst().send(a.sge(0, 64), {.wr_id = 3});
    for (int i = 0; i < 50; ++i) a.turn();
    CHECK(a.sent.empty());
    driver::RtrConfig rtr = options.rtr;
    rtr.path.remote_gid = b.gid;
    rtr.remote_qpn = b.qp().qpn();
    a.qp().control().to_rtr(rtr);
    for (int i = 0; i < 50; ++i) a.turn();
    CHECK(a.sent.empty());
    b.qp().post_receive(b.sge(0, 64));
    b.qp().publish_receives();
    rtr.path.remote_gid = a.gid;
    rtr.remote_qpn = a.qp().qpn();
    b.qp().connect(options.init, rtr, options.rts);
    a.qp().control().to_rts(options.rts);
    for (int i = 0; i < 1000 && a.sent.empty(); ++i) {
      a.turn();
      b.turn();
    }
    REQUIRE(a.sent.size() == 1);
    CHECK(a.sent[0].ok());
    CHECK(b.holds(0, 64, 1));
  }

  TEST_CASE("a peer that is not ready to receive yet costs retries, and the message arrives") {
    QpOptions options;
    options.rts.timeout = 8;  // 1 ms
    auto driver = soft::make_driver(in_process());
    auto device = driver->open("");
    End a(*device, options);
    End b(*device, options);
    driver::RtrConfig rtr = options.rtr;
    rtr.path.remote_gid = b.gid;
    rtr.remote_qpn = b.qp().qpn();
    a.qp().connect(options.init, rtr, options.rts);
    b.qp().control().to_init(options.init);
    a.fill(0, 64, 1);
    a.qp().send_burst().send(a.sge(0, 64));
    for (int i = 0; i < 100; ++i) {
      a.turn();
      b.turn();
    }
    CHECK(b.received.empty());
    b.qp().post_receive(b.sge(0, 64));
    b.qp().publish_receives();
    rtr.path.remote_gid = a.gid;
    rtr.remote_qpn = a.qp().qpn();
    b.qp().control().to_rtr(rtr);  // rtr is enough to receive
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (a.sent.empty() && std::chrono::steady_clock::now() < end) {
      a.turn();
      b.turn();
    }
    REQUIRE(a.sent.size() == 1);
    CHECK(a.sent[0].ok());
    CHECK(b.holds(0, 64, 1));
  }

  TEST_CASE("everything posted is flushed exactly once and in order, on both queues") {
    for (const bool rung_before : {true, false}) {
      CAPTURE(rung_before);
      QpOptions options;
      options.signal_every = 8;
      Pair pair(options);
      for (std::uint64_t i = 0; i < 20; ++i) pair.a.qp().post_receive(pair.a.sge(0, 64), 100 + i);
      pair.a.qp().publish_receives();
      if (!rung_before) pair.a.qp().control().to_error();
      {
        auto burst = pair.a.qp().send_burst();
        for (std::uint64_t i = 0; i < 30; ++i) REQUIRE(burst.send(pair.a.sge(0, 64), {.wr_id = i}));
      }
      if (rung_before) pair.a.qp().control().to_error();
      std::uint64_t sent = 0;
      REQUIRE(pair.until([&] {
        sent = 0;
        for (const auto& done : pair.a.sent) sent += done.wr_count;
        return sent >= 30 && pair.a.received.size() >= 20;
      }));
      for (int i = 0; i < 50; ++i) pair.a.turn();
      CHECK(pair.a.sent.size() == 30);
      CHECK(pair.a.received.size() == 20);
      for (std::uint64_t i = 0; i < 30; ++i) {
        CHECK(pair.a.sent[i].status == Status::flushed);
        CHECK(pair.a.sent[i].wr_id == i);
      }
      for (std::uint64_t i = 0; i < 20; ++i) {
        CHECK(pair.a.received[i].status == Status::flushed);
        CHECK(pair.a.received[i].wr_id == 100 + i);
      }
      // Later ones as well.
      pair.a.qp().post_receive(pair.a.sge(0, 64), 777);
      pair.a.qp().publish_receives();
      REQUIRE(pair.until([&] { return pair.a.received.size() == 21; }));
      CHECK(pair.a.received[20].status == Status::flushed);
      CHECK(pair.a.received[20].wr_id == 777);
      CHECK(pair.a.send_cq->free_slots() + 1 == pair.a.send_cq->entries());
      CHECK(pair.a.recv_cq->free_slots() == pair.a.recv_cq->entries());
    }
  }

  TEST_CASE("an error in the middle of much traffic completes what was before and flushes what is behind") {
    QpOptions options;
    options.config.send_wrs = 256;
    options.config.recv_wrs = 256;
    options.signal_every = 16;
    Pair pair(options);
    for (std::uint64_t i = 0; i < 200; ++i) pair.b.qp().post_receive(pair.b.sge(i * 3000, 3000), i);
    pair.b.qp().publish_receives();
    {
      auto burst = pair.a.qp().send_burst();
      for (std::uint64_t i = 0; i < 200; ++i) {
        if (i == 100)
          REQUIRE(burst.write(pair.a.sge(0, 2500), {0, 1}, {.wr_id = i}));
        else
          REQUIRE(burst.send(pair.a.sge(0, 2500), {.wr_id = i}));
      }
    }
    std::uint64_t retired = 0;
    REQUIRE(pair.until([&] {
      retired = 0;
      for (const auto& done : pair.a.sent) retired += done.wr_count;
      return retired == 200 && pair.b.received.size() == 200;
    }));
    std::uint64_t at = 0;
    for (const auto& done : pair.a.sent) {
      at += done.wr_count;
      CHECK(done.wr_id == at - 1);
      CHECK(done.status == (at <= 100   ? Status::success
                            : at == 101 ? Status::remote_access_error
                                        : Status::flushed));
    }
    for (std::uint64_t i = 0; i < 200; ++i) {
      CHECK(pair.b.received[i].wr_id == i);
      CHECK(pair.b.received[i].status == (i < 100 ? Status::success : Status::flushed));
    }
  }

  TEST_CASE("an error on one QP leaves the others on its engine and its completion queues alone") {
    QpOptions options;
    Pair pair(options);
    queue::Qp& a2 = pair.a.add_qp(options);
    queue::Qp& b2 = pair.b.add_qp(options);
    connect(pair.a, a2, pair.b, b2, options);
    for (std::uint64_t i = 0; i < 10; ++i) b2.post_receive(pair.b.sge(i * 64, 64), i);
    b2.publish_receives();
    {
      auto burst = a2.send_burst();
      for (std::uint64_t i = 0; i < 5; ++i) burst.send(pair.a.sge(0, 64), {.wr_id = i});
    }
    pair.a.qp().send_burst().write(pair.a.sge(0, 64), {1, 1}, {.wr_id = 99});
    pair.a.turn();
    {
      auto burst = a2.send_burst();
      for (std::uint64_t i = 5; i < 10; ++i) burst.send(pair.a.sge(0, 64), {.wr_id = i});
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 11 && pair.b.received.size() == 10; }));
    for (const auto& done : pair.a.sent) CHECK(done.ok() == (done.qpn == a2.qpn()));
    for (const auto& done : pair.b.received) CHECK(done.ok());
    CHECK(a2.control().state() == QpState::rts);
    CHECK(b2.control().state() == QpState::rts);
  }

  TEST_CASE("a peer QP that does not exist, was reset, failed or lost its engine ends in retry exceeded") {
    for (int what = 0; what < 5; ++what) {
      CAPTURE(what);
      QpOptions options;
      options.rts.timeout = 5;  // 131 µs
      options.rts.retry_count = 3;
      auto driver = soft::make_driver(in_process());
      auto device = driver->open("");
      End a(*device, options);
      auto b = std::make_unique<End>(*device, options);
      connect(a, a.qp(), *b, b->qp(), options);
      if (what == 0) b->qps.clear();
      if (what == 1) b->qp().control().to_reset();
      if (what == 2) b->qp().control().to_error();
      if (what == 3) b.reset();
      if (what == 4) {  // of a device that nobody has
        a.qp().control().to_error();
        a.qp().control().to_reset();
        driver::RtrConfig rtr = options.rtr;
        rtr.path.remote_gid.bytes[15] = 99;
        a.qp().connect(options.init, rtr, options.rts);
      }
      {
        auto burst = a.qp().send_burst();
        for (std::uint64_t i = 0; i < 3; ++i) burst.send(a.sge(0, 64), {.wr_id = i});
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (a.sent.size() < 3 && std::chrono::steady_clock::now() < end) {
        a.turn();
        if (b != nullptr) b->turn();
      }
      REQUIRE(a.sent.size() == 3);
      CHECK(a.sent[0].status == Status::retry_exceeded);
      CHECK(a.sent[0].vendor_syndrome == 0x81);
      CHECK(a.sent[0].wr_id == 0);
      CHECK(a.sent[1].status == Status::flushed);
      CHECK(a.sent[2].status == Status::flushed);
    }
  }

  TEST_CASE("waiting for a receiver that said when to come back does not use up the retries for losses") {
    for (const bool at_the_last_packet : {false, true}) {
      CAPTURE(at_the_last_packet);
      QpOptions options;
      options.rts.timeout = 1;  // 8 µs
      options.rts.retry_count = 1;
      options.rtr.min_rnr_timer = 20;  // 10.24 ms
      soft::SoftOptions wire = in_process();
      wire.copy_payloads = true;
      Pair pair(options, wire);
      {
        auto burst = pair.a.qp().send_burst();
        // Only the last packet of a WRITE_WITH_IMM takes a receive.
        if (at_the_last_packet)
          burst.write_with_imm(pair.a.sge(0, 3000), pair.b.remote(0), 5);
        else
          burst.send(pair.a.sge(0, 64));
      }
      CHECK_FALSE(pair.until([&] { return !pair.a.sent.empty(); }, std::chrono::milliseconds(5)));
      pair.b.qp().post_receive(pair.b.sge(0, 64));
      pair.b.qp().publish_receives();
      REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }));
      CHECK(pair.a.sent[0].status == Status::success);
    }
  }

  TEST_CASE("a QP that was reset can be connected again and starts from nothing") {
    QpOptions options;
    Pair pair(options);
    RawCq cq(pair.a.port->create_cq(64));
    RawCq other(pair.b.port->create_cq(64));
    RawQp a(pair.a, cq.control(), cq.control(), options);
    RawQp b(pair.b, other.control(), other.control(), options);
    for (int round = 0; round < 3; ++round) {
      CAPTURE(round);
      connect_raw(a.control(), pair.a, b.control(), pair.b, options);
      // A ring starts again at its first block.
      const queue::SendRing& ring = a.control().send_ring();
      CHECK(*ring.record == 0);
      pair.a.fill(0, 64, static_cast<unsigned>(round));
      RawQp* fresh = &a;
      RawWqe wqe(MLX5_OPCODE_RDMA_WRITE);
      wqe.remote(pair.b.remote(0).address, pair.b.region->rkey()).data(pair.a.sge(0, 64));
      std::uint32_t at = 0;
      for (const auto& segment : wqe.segments) std::memcpy(ring.wqes + 16 * at++, segment.data(), 16);
      auto* ctrl = reinterpret_cast<queue::CtrlSegment*>(ring.wqes);
      ctrl->qpn_ds = big_endian(a.qpn() << 8 | 3);
      fresh->ring_to(1);
      std::optional<RawCqe> done;
      REQUIRE(pair.until([&] { return (done = cq.next()).has_value(); }));
      cq.acknowledge();
      CHECK(done->opcode == MLX5_CQE_REQ);
      CHECK(done->counter == 0);
      CHECK(pair.b.holds(0, 64, static_cast<unsigned>(round)));
      for (RawQp* qp : {&a, &b}) {
        qp->control().to_error();
        qp->control().to_reset();
      }
    }
  }
}
