#include "rig.hpp"

using namespace rig;

TEST_SUITE("soft.rc") {
  TEST_CASE("a SEND arrives in the posted buffer with its length and both sides get completions") {
    Pair pair;
    pair.a.fill(0, 300, 1);
    REQUIRE(pair.b.qp().post_receive(pair.b.sge(4096, 1024), 77));
    pair.b.qp().publish_receives();
    REQUIRE(pair.a.qp().send_burst().send(pair.a.sge(0, 300), {.wr_id = 5}));
    REQUIRE(pair.until([&] { return !pair.a.sent.empty() && !pair.b.received.empty(); }));
    CHECK(pair.b.holds(4096, 300, 1));
    CHECK(pair.b.received[0].wr_id == 77);
    CHECK(pair.b.received[0].byte_len == 300);
    CHECK(pair.b.received[0].opcode == Opcode::recv);
    CHECK(pair.b.received[0].qpn == pair.b.qp().qpn());
    CHECK(pair.a.sent[0].wr_id == 5);
    CHECK(pair.a.sent[0].opcode == Opcode::send);
    CHECK(pair.a.sent[0].wr_count == 1);
  }

  TEST_CASE("messages of every size around the packet boundaries arrive whole by SEND, WRITE and READ") {
    Pair pair;
    for (const std::uint32_t bytes :
         {0U, 1U, 63U, 64U, 65U, 1023U, 1024U, 1025U, 2048U, 2049U, 65536U, 100'000U}) {
      CAPTURE(bytes);
      pair.a.fill(0, bytes, bytes);
      pair.a.sent.clear();
      pair.b.received.clear();
      pair.b.qp().post_receive(pair.b.sge(200'000, 100'000), 1);
      pair.b.qp().publish_receives();
      {
        auto burst = pair.a.qp().send_burst();
        REQUIRE(burst.send(pair.a.sge(0, bytes), {.wr_id = 1}));
        REQUIRE(burst.write(pair.a.sge(0, bytes), pair.b.remote(400'000), {.wr_id = 2}));
        REQUIRE(burst.read(pair.a.sge(600'000, bytes), pair.b.remote(400'000), {.wr_id = 3}));
      }
      REQUIRE(pair.until([&] { return pair.a.sent.size() == 3 && pair.b.received.size() == 1; }));
      for (const auto& done : pair.a.sent) CHECK(done.ok());
      CHECK(pair.b.received[0].byte_len == bytes);
      CHECK(pair.b.holds(200'000, bytes, bytes));
      CHECK(pair.b.holds(400'000, bytes, bytes));
      CHECK(pair.a.holds(600'000, bytes, bytes));
      CHECK(pair.a.sent[2].byte_len == bytes);
    }
  }

  TEST_CASE("immediates arrive with SEND and with WRITE, which takes a receive but leaves its buffer alone") {
    Pair pair;
    pair.a.fill(0, 100, 9);
    for (int i = 0; i < 3; ++i) pair.b.qp().post_receive(pair.b.sge(0, 256), static_cast<std::uint64_t>(i));
    pair.b.qp().publish_receives();
    {
      auto burst = pair.a.qp().send_burst();
      burst.send_with_imm(pair.a.sge(0, 100), 0xdeadbeef);
      burst.write_with_imm(pair.a.sge(0, 100), pair.b.remote(1000), 0x01020304);
      const std::byte small[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
      burst.write_inline_with_imm(small, pair.b.remote(2000), 5);
    }
    REQUIRE(pair.until([&] { return pair.b.received.size() == 3 && pair.a.sent.size() == 3; }));
    CHECK(pair.b.received[0].opcode == Opcode::recv_with_imm);
    CHECK(pair.b.received[0].imm == 0xdeadbeef);
    CHECK(pair.b.received[1].opcode == Opcode::recv_write_with_imm);
    CHECK(pair.b.received[1].imm == 0x01020304);
    CHECK(pair.b.received[1].byte_len == 100);
    CHECK(pair.b.holds(1000, 100, 9));
    CHECK(pair.b.memory[2002] == std::byte{3});
    CHECK(pair.b.received[2].wr_id == 2);
  }

  TEST_CASE("inline data of every size the QP allows arrives, at every place in the ring") {
    Pair pair;
    std::uint64_t received = 0;
    for (std::uint32_t round = 0; round < 3; ++round)
      for (std::uint32_t bytes = 0; bytes <= 220; bytes += 1) {
        pair.a.fill(0, bytes, bytes + round);
        pair.b.qp().post_receive(pair.b.sge(4096, 256), bytes);
        pair.b.qp().publish_receives();
        const std::span<const std::byte> data(pair.a.memory.data(), bytes);
        {
          auto burst = pair.a.qp().send_burst();
          REQUIRE(burst.send_inline(data));
          REQUIRE(burst.write_inline(data, pair.b.remote(8192)));
        }
        ++received;
        REQUIRE(pair.until(
            [&] { return pair.b.received.size() == received && pair.a.sent.size() == 2 * received; }));
        REQUIRE(pair.b.holds(4096, bytes, bytes + round));
        REQUIRE(pair.b.holds(8192, bytes, bytes + round));
      }
  }

  TEST_CASE("gather lists are joined and scatter lists are filled in order") {
    Pair pair;
    pair.a.fill(0, 3000, 4);
    const Sge in[3] = {pair.b.sge(10'000, 100), pair.b.sge(20'000, 1), pair.b.sge(30'000, 5000)};
    pair.b.qp().post_receive(in, 1);
    pair.b.qp().publish_receives();
    const Sge out[4] = {pair.a.sge(0, 7), pair.a.sge(7, 0), pair.a.sge(7, 1493), pair.a.sge(1500, 1500)};
    {
      auto burst = pair.a.qp().send_burst();
      REQUIRE(burst.send(std::span<const Sge>(out)));
      REQUIRE(burst.write(std::span<const Sge>(out), pair.b.remote(100'000)));
      REQUIRE(burst.read(std::span<const Sge>(out + 2, 1), pair.b.remote(100'000 + 7)));
    }
    REQUIRE(pair.until([&] { return pair.b.received.size() == 1 && pair.a.sent.size() == 3; }));
    CHECK(std::memcmp(pair.b.memory.data() + 10'000, pair.a.memory.data(), 100) == 0);
    CHECK(std::memcmp(pair.b.memory.data() + 20'000, pair.a.memory.data() + 100, 1) == 0);
    CHECK(std::memcmp(pair.b.memory.data() + 30'000, pair.a.memory.data() + 101, 2899) == 0);
    CHECK(pair.b.holds(100'000, 3000, 4));
  }

  TEST_CASE("atomics return the value before and change it once") {
    Pair pair;
    auto* counter = reinterpret_cast<std::uint64_t*>(pair.b.memory.data() + 64);
    *counter = 40;
    {
      auto burst = pair.a.qp().send_burst();
      burst.fetch_add(pair.a.sge(0, 8), pair.b.remote(64), 2, {.wr_id = 1});
      burst.cmp_swap(pair.a.sge(8, 8), pair.b.remote(64), 42, 7, {.wr_id = 2});
      burst.cmp_swap(pair.a.sge(16, 8), pair.b.remote(64), 42, 8, {.wr_id = 3});
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 3; }));
    const auto* before = reinterpret_cast<const std::uint64_t*>(pair.a.memory.data());
    CHECK(before[0] == 40);
    CHECK(before[1] == 42);
    CHECK(before[2] == 7);
    CHECK(*counter == 7);
    CHECK(pair.a.sent[0].opcode == Opcode::fetch_add);
    CHECK(pair.a.sent[1].byte_len == 8);
  }

  TEST_CASE("more READs than the read depth wait their turn and all complete") {
    QpOptions options;
    options.rts.reads_out = 2;
    options.rtr.reads_in = 2;
    Pair pair(options);
    pair.b.fill(0, 50'000, 3);
    {
      auto burst = pair.a.qp().send_burst();
      for (std::uint32_t i = 0; i < 20; ++i)
        REQUIRE(burst.read(pair.a.sge(i * 2500, 2500), pair.b.remote(i * 2500)));
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 20; }));
    CHECK(pair.a.holds(0, 50'000, 3));
    for (const auto& done : pair.a.sent) CHECK(done.ok());
  }

  TEST_CASE("a fenced request starts only after the READs before it") {
    Pair pair;
    pair.b.fill(0, 100'000, 1);
    {
      auto burst = pair.a.qp().send_burst();
      burst.read(pair.a.sge(200'000, 100'000), pair.b.remote(0));
      // Overwrites what the READ reads; unfenced it may be seen by it.
      pair.a.fill(0, 100'000, 2);
      burst.write(pair.a.sge(0, 100'000), pair.b.remote(0), {.fence = true});
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 2; }));
    CHECK(pair.a.holds(200'000, 100'000, 1));
    CHECK(pair.b.holds(0, 100'000, 2));
  }

  TEST_CASE("SEND_WITH_INV ends the receiver's key, and says which") {
    Pair pair;
    auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 4096),
                                             driver::all_access | driver::Access::remote_invalidate);
    pair.b.qp().post_receive(pair.b.sge(8192, 64));
    pair.b.qp().publish_receives();
    pair.a.qp().send_burst().send_with_inv(pair.a.sge(0, 8), window->rkey());
    REQUIRE(pair.until([&] { return pair.b.received.size() == 1 && pair.a.sent.size() == 1; }));
    CHECK(pair.b.received[0].opcode == Opcode::recv_with_inv);
    CHECK(pair.b.received[0].imm == window->rkey());
    pair.a.qp().send_burst().write(pair.a.sge(0, 8), {pair.b.remote(0).address, window->rkey()});
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 2; }));
    CHECK(pair.a.sent[1].status == Status::remote_access_error);
  }

  TEST_CASE("without a receive the sender waits for the receiver's timer and then goes on") {
    Pair pair;
    pair.a.fill(0, 64, 6);
    pair.a.qp().send_burst().send(pair.a.sge(0, 64));
    CHECK_FALSE(pair.until([&] { return !pair.a.sent.empty(); }, std::chrono::milliseconds(20)));
    pair.b.qp().post_receive(pair.b.sge(4096, 64));
    pair.b.qp().publish_receives();
    REQUIRE(pair.until([&] { return !pair.a.sent.empty() && !pair.b.received.empty(); }));
    CHECK(pair.a.sent[0].ok());
    CHECK(pair.b.holds(4096, 64, 6));
  }

  TEST_CASE("when the RNR retries are spent the request fails and the rest is flushed in order") {
    QpOptions options;
    options.rts.rnr_retry = 2;
    options.rtr.min_rnr_timer = 1;  // 10 µs
    Pair pair(options);
    {
      auto burst = pair.a.qp().send_burst();
      for (std::uint64_t i = 0; i < 4; ++i) burst.send(pair.a.sge(0, 64), {.wr_id = i});
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 4; }));
    CHECK(pair.a.sent[0].status == Status::rnr_retry_exceeded);
    for (std::uint64_t i = 0; i < 4; ++i) CHECK(pair.a.sent[i].wr_id == i);
    for (std::uint64_t i = 1; i < 4; ++i) CHECK(pair.a.sent[i].status == Status::flushed);
  }

  TEST_CASE("a QP on the same engine as its peer works") {
    QpOptions options;
    auto driver = soft::make_driver(in_process());
    auto device = driver->open("");
    End end(*device, options);
    queue::Qp& other = end.add_qp(options);
    connect(end, end.qp(), end, other, options);
    end.fill(0, 5000, 2);
    other.post_receive(end.sge(10'000, 5000), 1);
    other.publish_receives();
    end.qp().send_burst().send(end.sge(0, 5000));
    for (int i = 0; i < 1000 && end.received.empty(); ++i) end.turn();
    REQUIRE(end.received.size() == 1);
    CHECK(end.holds(10'000, 5000, 2));
  }

  TEST_CASE("a hundred thousand messages through small rings keep their order and their number") {
    QpOptions options;
    options.config.send_wrs = 8;
    options.config.recv_wrs = 16;
    options.signal_every = 4;
    Pair pair(options);
    constexpr std::uint64_t total = 100'000;
    std::uint64_t posted = 0;
    std::uint64_t completed = 0;
    std::uint64_t seen = 0;
    std::uint64_t buffers = 0;
    bool in_order = true;
    while (seen < total) {
      while (pair.b.qp().post_receive(pair.b.sge(buffers % 16 * 64, 64), buffers)) ++buffers;
      pair.b.qp().publish_receives();
      {
        auto burst = pair.a.qp().send_burst();
        while (posted < total) {
          std::byte data[8];
          std::memcpy(data, &posted, 8);
          if (!burst.send_inline(data, {.wr_id = posted})) break;
          ++posted;
        }
      }
      pair.a.turn();
      pair.b.turn();
      for (const auto& done : pair.a.sent) {
        completed += done.wr_count;
        in_order = in_order && done.ok() && (done.opcode == Opcode::nop || done.wr_id + 1 == completed);
      }
      pair.a.sent.clear();
      for (const auto& done : pair.b.received) {
        std::uint64_t value;
        std::memcpy(&value, pair.b.memory.data() + done.wr_id % 16 * 64, 8);
        in_order = in_order && done.ok() && value == seen && done.wr_id == seen;
        ++seen;
      }
      pair.b.received.clear();
      REQUIRE(in_order);
    }
    REQUIRE(pair.until([&] {
      for (const auto& done : pair.a.sent) completed += done.wr_count;
      pair.a.sent.clear();
      return completed == total;
    }));
    CHECK(pair.a.qp().sq().outstanding() == 0);
    CHECK(pair.a.qp().sq().free_blocks() == pair.a.qp().sq().ring().blocks);
  }
}
