// Every operation of a connected QP, through the translator and a real provider.
#include <cstring>

#include "verbs_rig.hpp"

using namespace verbs_rig;

TEST_SUITE("verbs.rc") {
  TEST_CASE("a SEND arrives in the posted buffer with its length and both sides get completions") {
    NEEDS_DEVICE();
    VerbsPair pair;
    pair.a.fill(0, 300, 1);
    pair.expect(4096, 1024, 77);
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
    NEEDS_DEVICE();
    VerbsPair pair;
    for (const std::uint32_t bytes : {0U, 1U, 63U, 64U, 65U, 1023U, 1024U, 1025U, 2049U, 65536U, 100'000U}) {
      CAPTURE(bytes);
      pair.a.fill(0, bytes, bytes);
      pair.a.sent.clear();
      pair.b.received.clear();
      pair.expect(200'000, 100'000, 1);
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
    NEEDS_DEVICE();
    VerbsPair pair;
    pair.a.fill(0, 100, 9);
    for (std::uint64_t i = 0; i < 3; ++i) pair.expect(0, 256, i);
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

  TEST_CASE("inline data arrives at every place in the ring, whether the provider takes it inline or not") {
    NEEDS_DEVICE();
    for (const std::uint32_t most : {220U, 828U}) {
      QpOptions options = rc_options();
      options.config.inline_bytes = most;
      options.config.send_wrs = 8;
      VerbsPair pair(options);
      std::size_t received = 0;
      for (std::uint32_t bytes = 0; bytes <= most; bytes += most == 220 ? 3 : 23) {
        pair.a.fill(0, bytes, bytes);
        pair.expect(4096, 1024, bytes);
        {
          const std::span<const std::byte> data(pair.a.memory.data(), bytes);
          auto burst = pair.a.qp().send_burst();
          REQUIRE(burst.send_inline(data));
          REQUIRE(burst.write_inline(data, pair.b.remote(8192)));
        }
        // What was inline is the driver's: the program may use its memory again.
        pair.a.fill(0, bytes, bytes + 1);
        ++received;
        REQUIRE(pair.until(
            [&] { return pair.b.received.size() == received && pair.a.sent.size() == 2 * received; }));
        REQUIRE(pair.b.holds(4096, bytes, bytes));
        REQUIRE(pair.b.holds(8192, bytes, bytes));
      }
    }
  }

  TEST_CASE("gather lists are joined and scatter lists are filled in order") {
    NEEDS_DEVICE();
    VerbsPair pair;
    pair.a.fill(0, 3000, 4);
    const Sge in[3] = {pair.b.sge(10'000, 100), pair.b.sge(20'000, 1), pair.b.sge(30'000, 5000)};
    pair.b.qp().post_receive(in, 1);
    pair.b.qp().publish_receives();
    const Sge out[4] = {pair.a.sge(0, 7), pair.a.sge(7, 0), pair.a.sge(7, 1493), pair.a.sge(1500, 1500)};
    {
      auto burst = pair.a.qp().send_burst();
      REQUIRE(burst.send(std::span<const Sge>(out)));
      REQUIRE(burst.write(std::span<const Sge>(out), pair.b.remote(100'000)));
    }
    REQUIRE(pair.until([&] { return pair.b.received.size() == 1 && pair.a.sent.size() == 2; }));
    CHECK(std::memcmp(pair.b.memory.data() + 10'000, pair.a.memory.data(), 100) == 0);
    CHECK(std::memcmp(pair.b.memory.data() + 20'000, pair.a.memory.data() + 100, 1) == 0);
    CHECK(std::memcmp(pair.b.memory.data() + 30'000, pair.a.memory.data() + 101, 2899) == 0);
    CHECK(pair.b.holds(100'000, 3000, 4));
  }

  TEST_CASE("atomics return the value before and change it once") {
    NEEDS_DEVICE();
    VerbsPair pair;
    auto* counter = reinterpret_cast<std::uint64_t*>(pair.b.memory.data() + 64);
    *counter = 40;
    {
      auto burst = pair.a.qp().send_burst();
      burst.fetch_add(pair.a.sge(0, 8), pair.b.remote(64), 2, {.wr_id = 1});
      burst.cmp_swap(pair.a.sge(8, 8), pair.b.remote(64), 42, 7, {.wr_id = 2});
      burst.cmp_swap(pair.a.sge(16, 8), pair.b.remote(64), 42, 8, {.wr_id = 3});
    }
    REQUIRE(pair.sent(3));
    const auto* before = reinterpret_cast<const std::uint64_t*>(pair.a.memory.data());
    CHECK(before[0] == 40);
    CHECK(before[1] == 42);
    CHECK(before[2] == 7);
    CHECK(*counter == 7);
    CHECK(pair.a.sent[0].opcode == Opcode::fetch_add);
    CHECK(pair.a.sent[1].byte_len == 8);
  }

  TEST_CASE("a fenced request starts only after the READs before it") {
    NEEDS_DEVICE();
    VerbsPair pair;
    pair.b.fill(0, 50'000, 1);
    {
      auto burst = pair.a.qp().send_burst();
      burst.read(pair.a.sge(200'000, 50'000), pair.b.remote(0));
      pair.a.fill(0, 50'000, 2);
      burst.write(pair.a.sge(0, 50'000), pair.b.remote(0), {.fence = true});
    }
    REQUIRE(pair.sent(2));
    CHECK(pair.a.holds(200'000, 50'000, 1));
    CHECK(pair.b.holds(0, 50'000, 2));
  }

  TEST_CASE("unsignalled requests are all retired, also those that nothing follows") {
    NEEDS_DEVICE();
    QpOptions options = rc_options();
    options.signal_every = 16;
    VerbsPair pair(options);
    std::uint32_t posted = 0;
    for (std::uint32_t burst_size : {1U, 2U, 15U, 3U, 1U, 17U, 5U}) {
      auto burst = pair.a.qp().send_burst();
      for (std::uint32_t i = 0; i < burst_size; ++i)
        REQUIRE(burst.write(pair.a.sge(0, 64), pair.b.remote(0), {.wr_id = posted++}));
    }
    REQUIRE(pair.until([&] { return pair.a.qp().sq().outstanding() == 0; }));
    std::uint32_t retired = 0;
    for (const auto& done : pair.a.sent) {
      CHECK(done.ok());
      retired += done.wr_count;
    }
    CHECK(retired == posted);
    CHECK(pair.a.sent.size() < posted);
  }

  TEST_CASE("a NOP completes in its turn, on an idle queue and behind requests") {
    NEEDS_DEVICE();
    VerbsPair pair;
    pair.a.qp().send_burst().nop({.wr_id = 1});
    REQUIRE(pair.sent(1));
    {
      auto burst = pair.a.qp().send_burst();
      burst.write(pair.a.sge(0, 30'000), pair.b.remote(0), {.wr_id = 2});
      burst.nop({.wr_id = 3});
      burst.nop({.wr_id = 4});
      burst.write(pair.a.sge(0, 64), pair.b.remote(0), {.wr_id = 5});
    }
    REQUIRE(pair.sent(5));
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(pair.a.sent[i].ok());
      CHECK(pair.a.sent[i].wr_id == i + 1);
    }
    CHECK(pair.a.sent[3].opcode == Opcode::nop);
  }

  TEST_CASE("several QPs on the same completion queues keep their completions apart") {
    NEEDS_DEVICE();
    QpOptions options = rc_options();
    VerbsPair pair(options);
    queue::Qp& a2 = pair.a.add_qp(options);
    queue::Qp& b2 = pair.b.add_qp(options);
    connect(pair.a, a2, pair.b, b2, options);
    pair.expect(0, 64, 1);
    b2.post_receive(pair.b.sge(64, 64), 2);
    b2.publish_receives();
    a2.send_burst().send(pair.a.sge(0, 32), {.wr_id = 20});
    pair.a.qp().send_burst().send(pair.a.sge(0, 16), {.wr_id = 10});
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 2 && pair.b.received.size() == 2; }));
    for (const auto& done : pair.a.sent) CHECK(done.qpn == (done.wr_id == 20 ? a2.qpn() : pair.a.qp().qpn()));
    for (const auto& done : pair.b.received) {
      CHECK(done.qpn == (done.wr_id == 2 ? b2.qpn() : pair.b.qp().qpn()));
      CHECK(done.byte_len == (done.wr_id == 2 ? 32 : 16));
    }
  }

  TEST_CASE("thousands of messages through small rings keep their order and their number") {
    NEEDS_DEVICE();
    QpOptions options = rc_options();
    options.config.send_wrs = 8;
    options.config.recv_wrs = 16;
    options.signal_every = 4;
    VerbsPair pair(options);
    constexpr std::uint64_t total = 5'000;
    std::uint64_t posted = 0;
    std::uint64_t completed = 0;
    std::uint64_t seen = 0;
    std::uint64_t buffers = 0;
    bool in_order = true;
    REQUIRE(pair.until(
        [&] {
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
          return !in_order || (seen == total && completed == total);
        },
        std::chrono::seconds(60)));
    CHECK(in_order);
    CHECK(pair.a.qp().sq().outstanding() == 0);
  }

  TEST_CASE("a sleeper is woken by what arrives, and does not sleep when something is there") {
    NEEDS_DEVICE();
    VerbsPair pair;
    pair.expect(0, 64);
    pair.b.turn();
    REQUIRE(pair.b.port->arm());
    pair.a.qp().send_burst().send(pair.a.sge(0, 64));
    CHECK(readable(pair.b.port->wake_fd(), std::chrono::seconds(10)));
    pair.b.port->disarm();
    CHECK_FALSE(readable(pair.b.port->wake_fd(), std::chrono::milliseconds(0)));
    REQUIRE(pair.until([&] { return !pair.b.received.empty() && !pair.a.sent.empty(); }));

    pair.expect(0, 64);
    pair.a.qp().send_burst().send(pair.a.sge(0, 64));
    REQUIRE(pair.until([&] { return pair.b.received.size() == 2 && pair.a.sent.size() == 2; }));
    pair.expect(0, 64);
    CHECK_FALSE(pair.b.port->arm());  // it has a buffer to post first
    pair.b.port->disarm();
  }

  TEST_CASE("UC sends and writes with immediate") {
    NEEDS_DEVICE();
    QpOptions options = rc_options();
    options.config.transport = driver::Transport::uc;
    VerbsPair pair(options);
    pair.a.fill(0, 3000, 2);
    pair.expect(4096, 4096, 1);
    pair.expect(0, 0, 2);
    pair.b.turn();  // the provider has the buffers: UC drops what finds none
    {
      auto burst = pair.a.qp().send_burst();
      burst.send(pair.a.sge(0, 3000));
      burst.write_with_imm(pair.a.sge(0, 3000), pair.b.remote(100'000), 7);
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 2 && pair.b.received.size() == 2; }));
    CHECK(pair.b.holds(4096, 3000, 2));
    CHECK(pair.b.holds(100'000, 3000, 2));
    CHECK(pair.b.received[1].imm == 7);
    pair.a.sent.clear();
    pair.a.qp().send_burst().read(pair.a.sge(0, 8), pair.b.remote(0));
    REQUIRE(pair.sent(1));
    CHECK(pair.a.sent[0].status == Status::local_qp_operation_error);
  }
}
