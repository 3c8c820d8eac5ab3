#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>

#include "counters_at.hpp"
#include "memory_device.hpp"
#include "pollen/base/error.hpp"

using namespace memory_device;

namespace {

struct SmallQueue {
  SmallQueue(std::uint32_t qpn, CompletionQueue& cq, std::uint32_t signal_every = 1)
      : memory({.blocks = 16, .qpn = qpn}), sq(memory.ring(), cq, signal_every) {}
  void post(std::uint64_t wr_id) { REQUIRE(sq.burst().nop({.wr_id = wr_id})); }
  void complete(CqMemory& cq) {
    while (auto wqe = memory.take())
      if (wqe->signalled()) cq.put_send(wqe->opcode, memory.qpn(), wqe->index);
  }

  SendMemory memory;
  SendQueue sq;
};

std::byte buffer[64];

}  // namespace

TEST_SUITE("queue.completion_queue") {
  TEST_CASE("a fresh queue has nothing, and leaves its record alone") {
    CqMemory memory(8);
    CompletionQueue cq(memory.ring());
    Completion out[4];
    CHECK_FALSE(cq.ready());
    CHECK(cq.poll(out, 4) == 0);
    CHECK(cq.poll(out, 0) == 0);
    CHECK(memory.consumer_record() == 0);
    CHECK(cq.cqes_total() == 0);
    CHECK(cq.entries() == 8);
    CHECK(cq.free_slots() == 8);
  }

  TEST_CASE("ready() tells what poll() would find, over many laps") {
    CqMemory memory(4);
    CompletionQueue cq(memory.ring());
    SmallQueue queue(5, cq);
    cq.attach(5, &queue.sq, nullptr);
    Completion out[4];
    for (std::uint64_t i = 0; i < 50; ++i) {
      CHECK_FALSE(cq.ready());
      CHECK(cq.poll(out, 4) == 0);
      queue.post(i);
      CHECK_FALSE(cq.ready());
      queue.complete(memory);
      CHECK(cq.ready());
      REQUIRE(cq.poll(out, 4) == 1);
      CHECK(out[0].wr_id == i);
      CHECK(memory.consumer_record() == i + 1);
    }
    CHECK(cq.cqes_total() == 50);
  }

  TEST_CASE("poll() takes no more than it was asked for, and goes on where it was, across the ring's end") {
    for (const std::uint32_t at_once : {1U, 2U, 3U, 5U, 8U}) {
      CqMemory memory(8);
      CompletionQueue cq(memory.ring());
      SmallQueue queue(5, cq);
      cq.attach(5, &queue.sq, nullptr);
      std::uint64_t posted = 0;
      std::uint64_t polled = 0;
      for (int round = 0; round < 30; ++round) {
        while (cq.free_slots() != 0) queue.post(posted++);
        queue.complete(memory);
        Completion out[8];
        const std::uint32_t count = cq.poll(out, at_once);
        REQUIRE(count == std::min(at_once, 7U));
        for (std::uint32_t i = 0; i < count; ++i) REQUIRE(out[i].wr_id == polled++);
        CHECK(memory.consumer_record() == polled);
      }
    }
  }

  TEST_CASE("the consumer index record holds 24 bits") {
    constexpr std::uint32_t first = (1U << 24) - 3 * 64;
    CqMemory memory(64, first);
    CompletionQueue cq(memory.ring());
    counters_at::set(cq, first);
    RecvMemory recv_memory(64, 16);
    RecvQueue rq(recv_memory.ring(), cq);
    cq.attach(9, nullptr, &rq);
    Completion out[64];
    for (std::uint32_t polled = first; polled < first + 6 * 64;) {
      for (int n = 0; n < 64; ++n) REQUIRE(rq.post({buffer, 1, 1}));
      for (int n = 0; n < 64; ++n) memory.put_receive(Opcode::recv, 9, {});
      REQUIRE(cq.poll(out, 64) == 64);
      polled += 64;
      CHECK(memory.consumer_record() == (polled & 0xffffff));
    }
    CHECK(memory.consumer_record() == 3 * 64);
  }

  TEST_CASE("QPs that share a queue keep their completions apart, however they interleave") {
    CqMemory memory(64);
    CompletionQueue cq(memory.ring());
    std::vector<std::unique_ptr<SmallQueue>> queues;
    for (std::uint32_t i = 0; i < 5; ++i) {
      queues.push_back(std::make_unique<SmallQueue>(100 + i, cq));
      cq.attach(100 + i, &queues.back()->sq, nullptr);
    }
    CHECK(cq.free_slots() == 64 - 5);
    std::mt19937 random(5);
    std::vector<std::uint32_t> order;
    std::vector<std::uint64_t> next(5);
    Completion out[16];
    for (int round = 0; round < 200; ++round) {
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t which = static_cast<std::uint32_t>(random() % 5);
        queues[which]->post(which * 1'000'000 + next[which]++);
        queues[which]->complete(memory);
        order.push_back(which);
      }
      REQUIRE(cq.poll(out, 16) == 8);
      for (std::size_t i = 0; i < 8; ++i) {
        const std::uint32_t which = order[order.size() - 8 + i];
        REQUIRE(out[i].qpn == 100 + which);
        REQUIRE(out[i].wr_id / 1'000'000 == which);
      }
    }
    CHECK(cq.free_slots() == 64 - 5);
  }

  TEST_CASE("sends and receives of one QP share a queue") {
    CqMemory memory(16);
    CompletionQueue cq(memory.ring());
    SmallQueue queue(7, cq);
    RecvMemory recv_memory(8, 16);
    RecvQueue rq(recv_memory.ring(), cq);
    cq.attach(7, &queue.sq, &rq);
    for (std::uint64_t i = 0; i < 40; ++i) {
      REQUIRE(rq.post({buffer, 1, 1}, 1000 + i));
      queue.post(i);
      CHECK(cq.free_slots() == 16 - 1 - 2);
      if (i % 2 == 0) queue.complete(memory);
      memory.put_receive(Opcode::recv_with_imm, 7, {.byte_len = 1, .imm = static_cast<std::uint32_t>(i)});
      if (i % 2 == 1) queue.complete(memory);
      Completion out[4];
      REQUIRE(cq.poll(out, 4) == 2);
      const Completion& sent = out[i % 2];
      const Completion& received = out[1 - i % 2];
      CHECK(sent.wr_id == i);
      CHECK(received.wr_id == 1000 + i);
      CHECK(received.imm == i);
      CHECK(cq.free_slots() == 16 - 1);
    }
  }

  TEST_CASE("one QP can have its sends and its receives on two queues") {
    CqMemory send_memory(16);
    CqMemory recv_cq_memory(16);
    CompletionQueue send_cq(send_memory.ring());
    CompletionQueue recv_cq(recv_cq_memory.ring());
    SmallQueue queue(7, send_cq);
    RecvMemory recv_memory(8, 16);
    RecvQueue rq(recv_memory.ring(), recv_cq);
    send_cq.attach(7, &queue.sq, nullptr);
    recv_cq.attach(7, nullptr, &rq);
    // Only a send queue has a NOP to keep a slot for.
    CHECK(send_cq.free_slots() == 15);
    CHECK(recv_cq.free_slots() == 16);
    REQUIRE(rq.post({buffer, 1, 1}, 2));
    queue.post(1);
    CHECK(send_cq.free_slots() == 14);
    CHECK(recv_cq.free_slots() == 15);
    // What a device never does: a completion of the other direction is passed over.
    send_memory.put_receive(Opcode::recv, 7, {});
    recv_cq_memory.put_send(Opcode::send, 7, 0);
    Completion out[2];
    CHECK(send_cq.poll(out, 2) == 0);
    CHECK(recv_cq.poll(out, 2) == 0);
    CHECK(send_cq.free_slots() == 14);
    CHECK(recv_cq.free_slots() == 15);
  }

  TEST_CASE("completions of a QP that is not attached are passed over, and free their entry") {
    CqMemory memory(8);
    CompletionQueue cq(memory.ring());
    SmallQueue queue(7, cq);
    cq.attach(7, &queue.sq, nullptr);
    for (int i = 0; i < 5; ++i) memory.put_send(Opcode::send, 0x999, 0);
    queue.post(1);
    queue.complete(memory);
    memory.put_send_error(Opcode::send, 0x999, 0, Status::flushed);
    Completion out[8];
    REQUIRE(cq.poll(out, 8) == 1);
    CHECK(out[0].wr_id == 1);
    CHECK(memory.occupied() == 0);
    CHECK(cq.free_slots() == 7);
  }

  TEST_CASE("attaching more send queues than there are entries is refused in words") {
    CqMemory memory(4);
    CompletionQueue cq(memory.ring());
    std::vector<std::unique_ptr<SmallQueue>> queues;
    for (std::uint32_t i = 0; i < 4; ++i) queues.push_back(std::make_unique<SmallQueue>(i + 1, cq));
    for (std::uint32_t i = 0; i < 3; ++i) cq.attach(i + 1, &queues[i]->sq, nullptr);
    CHECK(cq.free_slots() == 1);
    try {
      cq.attach(4, &queues[3]->sq, nullptr);
      FAIL("attached");
    } catch (const pollen::Error& error) {
      CHECK(error.code().value() == ENOSPC);
      CHECK(std::string(error.what()).find("QP 4") != std::string::npos);
      CHECK(std::string(error.what()).find("4 entries") != std::string::npos);
    }
    CHECK(cq.free_slots() == 1);
    cq.detach(2);
    cq.attach(4, &queues[3]->sq, nullptr);
  }

  TEST_CASE("detach() gives back what the QP still held, and forgets it") {
    CqMemory memory(32);
    CompletionQueue cq(memory.ring());
    SmallQueue stays(1, cq);
    SmallQueue goes(2, cq);
    RecvMemory recv_memory(8, 16);
    RecvQueue rq(recv_memory.ring(), cq);
    cq.attach(1, &stays.sq, nullptr);
    cq.attach(2, &goes.sq, &rq);
    for (std::uint64_t i = 0; i < 4; ++i) {
      goes.post(i);
      REQUIRE(rq.post({buffer, 1, 1}));
    }
    stays.post(9);
    CHECK(cq.free_slots() == 32 - 2 - 9);
    cq.detach(2);
    CHECK(cq.free_slots() == 32 - 1 - 1);
    cq.detach(2);
    cq.detach(77);
    CHECK(cq.free_slots() == 32 - 1 - 1);
    // It completes all the same: late, and to no one.
    goes.complete(memory);
    stays.complete(memory);
    Completion out[8];
    REQUIRE(cq.poll(out, 8) == 1);
    CHECK(out[0].wr_id == 9);
    CHECK(cq.free_slots() == 31);
  }

  TEST_CASE("a QP number can be used again, by another queue") {
    CqMemory memory(16);
    CompletionQueue cq(memory.ring());
    Completion out[4];
    for (std::uint64_t round = 0; round < 10; ++round) {
      SmallQueue queue(33, cq);
      cq.attach(33, &queue.sq, nullptr);
      queue.post(round);
      queue.complete(memory);
      REQUIRE(cq.poll(out, 4) == 1);
      CHECK(out[0].wr_id == round);
      cq.detach(33);
    }
    CHECK(cq.free_slots() == 16);
  }

  TEST_CASE("hundreds of QPs are found, before and after others come and go") {
    const std::uint32_t strides[] = {1, 256, 0x2001};
    for (const std::uint32_t stride : strides) {
      CqMemory memory(1024);
      CompletionQueue cq(memory.ring());
      std::vector<std::unique_ptr<SmallQueue>> queues;
      std::vector<bool> attached(600, true);
      for (std::uint32_t i = 0; i < 600; ++i) {
        queues.push_back(std::make_unique<SmallQueue>(((i + 1) * stride) & 0xffffff, cq));
        cq.attach(queues[i]->memory.qpn(), &queues[i]->sq, nullptr);
      }
      std::mt19937 random(stride);
      for (int round = 0; round < 20; ++round) {
        for (std::size_t i = 0; i < 600; ++i) {
          if (random() % 3 != 0) continue;
          if (attached[i])
            cq.detach(queues[i]->memory.qpn());
          else
            cq.attach(queues[i]->memory.qpn(), &queues[i]->sq, nullptr);
          attached[i] = !attached[i];
        }
        std::uint32_t expected = 0;
        for (std::size_t i = 0; i < 600; ++i) {
          if (!attached[i]) {
            memory.put_send(Opcode::nop, queues[i]->memory.qpn(), 0);
          } else {
            queues[i]->post(i);
            queues[i]->complete(memory);
            ++expected;
          }
        }
        std::vector<Completion> out(700);
        REQUIRE(cq.poll(out.data(), 700) == expected);
        for (std::uint32_t i = 0; i < expected; ++i)
          REQUIRE(queues[out[i].wr_id]->memory.qpn() == out[i].qpn);
      }
      CHECK(cq.free_slots() ==
            1024 - static_cast<std::uint32_t>(std::count(attached.begin(), attached.end(), true)));
    }
  }

  TEST_CASE("purge() retires one QP's completions and leaves the others in order") {
    CqMemory memory(32);
    CompletionQueue cq(memory.ring());
    SmallQueue a(1, cq);
    SmallQueue b(2, cq);
    cq.attach(1, &a.sq, nullptr);
    cq.attach(2, &b.sq, nullptr);
    for (std::uint64_t i = 0; i < 6; ++i) {
      a.post(i);
      a.complete(memory);
      b.post(100 + i);
      b.complete(memory);
    }
    CHECK(cq.purge(1) == 6);
    CHECK(cq.purge(1) == 0);
    CHECK(a.sq.outstanding() == 0);
    CHECK(b.sq.outstanding() == 6);
    Completion out[16];
    REQUIRE(cq.poll(out, 16) == 6);
    for (std::uint64_t i = 0; i < 6; ++i) {
      CHECK(out[i].qpn == 2);
      CHECK(out[i].wr_id == 100 + i);
    }
    CHECK(cq.free_slots() == 30);
    CHECK(memory.occupied() == 0);
  }

  TEST_CASE("purge() on any lap, between any polls, loses and invents nothing") {
    std::mt19937 random(3);
    CqMemory memory(16);
    CompletionQueue cq(memory.ring());
    std::vector<std::unique_ptr<SmallQueue>> queues;
    for (std::uint32_t i = 0; i < 3; ++i) {
      queues.push_back(std::make_unique<SmallQueue>(50 + i, cq, 4));
      cq.attach(50 + i, &queues.back()->sq, nullptr);
    }
    std::vector<std::uint64_t> next(3);
    std::vector<std::uint64_t> done(3);
    for (int step = 0; step < 5000; ++step) {
      const std::size_t which = random() % 3;
      SmallQueue& queue = *queues[which];
      switch (random() % 4) {
        case 0:
          for (auto n = random() % 4; n != 0; --n)
            if (queue.sq.burst().nop({.wr_id = next[which]})) ++next[which];
          break;
        case 1:
          queue.complete(memory);
          break;
        case 2: {
          const std::uint32_t before = queue.sq.outstanding();
          cq.purge(50 + static_cast<std::uint32_t>(which));
          done[which] += before - queue.sq.outstanding();
          break;
        }
        default: {
          Completion out[3];
          const std::uint32_t count = cq.poll(out, 1 + static_cast<std::uint32_t>(random() % 3));
          for (std::uint32_t i = 0; i < count; ++i) {
            done[out[i].qpn - 50] += out[i].wr_count;
            REQUIRE(out[i].wr_id + 1 == done[out[i].qpn - 50]);
          }
        }
      }
      std::uint32_t outstanding = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        REQUIRE(done[i] + queues[i]->sq.outstanding() == next[i]);
        outstanding += queues[i]->sq.outstanding();
      }
      // An entry that poll() has yet to pass may not be promised to anyone.
      REQUIRE(cq.free_slots() <= 16 - 3 - outstanding);
    }
  }

  TEST_CASE("what purge() took out is not promised again before the device may write it") {
    CqMemory memory(8);
    CompletionQueue cq(memory.ring());
    SmallQueue a(1, cq);
    SmallQueue b(2, cq);
    cq.attach(1, &a.sq, nullptr);
    cq.attach(2, &b.sq, nullptr);
    b.post(100);
    b.complete(memory);  // at the head, and not polled
    for (std::uint64_t i = 0; i < 5; ++i) a.post(i);
    a.complete(memory);
    CHECK(cq.free_slots() == 0);
    CHECK(cq.purge(1) == 5);
    cq.detach(1);
    // Every request that can be posted now must find an entry when it completes.
    std::uint64_t posted = 0;
    while (b.sq.burst().nop({.wr_id = 200 + posted})) ++posted;
    CHECK(posted <= 8 - memory.occupied());
    if (posted <= 8 - memory.occupied()) {
      b.complete(memory);
      Completion out[8];
      std::uint32_t polled = 0;
      while (const std::uint32_t count = cq.poll(out, 8)) polled += count;
      CHECK(polled == 1 + posted);
    }
  }
}
