#include <deque>

#include "memory_device.hpp"

using namespace memory_device;

namespace {

std::vector<bool> signalled(const std::vector<Wqe>& wqes) {
  std::vector<bool> flags;
  for (const Wqe& wqe : wqes) flags.push_back(wqe.signalled());
  return flags;
}

void post(Rig& rig, std::uint64_t first, std::uint64_t count) {
  SendBurst burst = rig.sq.burst();
  for (std::uint64_t i = first; i < first + count; ++i) REQUIRE(burst.send_inline(pattern(8), {.wr_id = i}));
}

}  // namespace

TEST_SUITE("queue.signalling") {
  TEST_CASE("every k-th request is signalled, and the tail of a burst on an idle queue") {
    Rig rig({.blocks = 64}, 4);
    post(rig, 0, 10);
    const auto wqes = rig.complete_all();
    CHECK(signalled(wqes) == std::vector<bool>{0, 0, 0, 1, 0, 0, 0, 1, 0, 0});
    // The queue was idle when the burst began, but what it signalled since serves the tail: its
    // completion makes the queue close the tail with a NOP.
    auto completions = rig.poll_all();
    REQUIRE(completions.size() == 2);
    CHECK(completions[0].wr_id == 3);
    CHECK(completions[0].wr_count == 4);
    CHECK(completions[1].wr_id == 7);
    CHECK(completions[1].wr_count == 4);
    const auto nops = rig.complete_all();
    REQUIRE(nops.size() == 1);
    CHECK(nops[0].opcode == Opcode::nop);
    CHECK(nops[0].signalled());
    completions = rig.poll_all();
    REQUIRE(completions.size() == 1);
    CHECK(completions[0].opcode == Opcode::nop);
    CHECK(completions[0].wr_id == 9);
    CHECK(completions[0].wr_count == 2);
    CHECK(rig.sq.outstanding() == 0);
    CHECK(rig.sq.free_blocks() == 64);
  }

  TEST_CASE("the count of requests between signals goes on over bursts") {
    Rig rig({.blocks = 64}, 4);
    std::vector<bool> flags;
    for (std::uint64_t i = 0; i < 9; ++i) {
      post(rig, i, 1);
      while (auto wqe = rig.send_memory.take()) flags.push_back(wqe->signalled());
    }
    CHECK(flags == std::vector<bool>{1, 0, 0, 0, 1, 0, 0, 0, 1});
  }

  TEST_CASE("a lone request on an idle queue is signalled, every time") {
    Rig rig({.blocks = 64}, 16);
    for (std::uint64_t i = 0; i < 100; ++i) {
      post(rig, i, 1);
      const auto wqes = rig.complete_all();
      REQUIRE(wqes.size() == 1);
      CHECK(wqes[0].signalled());
      const auto completions = rig.poll_all();
      REQUIRE(completions.size() == 1);
      CHECK(completions[0].wr_id == i);
    }
    CHECK(rig.sq.doorbells() == 100);
  }

  TEST_CASE("a full ring closes its tail in the block that the first completion frees") {
    Rig rig({.blocks = 16}, 4);
    SendBurst burst = rig.sq.burst();
    std::uint64_t posted = 0;
    while (burst.nop({.wr_id = posted})) ++posted;
    burst.ring();
    CHECK(posted == 16);
    CHECK(rig.sq.free_blocks() == 0);
    for (int round = 0; round < 40 && rig.sq.outstanding() != 0; ++round) {
      rig.complete_all();
      rig.poll_all();
    }
    CHECK(rig.sq.outstanding() == 0);
    CHECK(rig.sq.free_blocks() == 16);
    CHECK(rig.cq.free_slots() == 255);
  }

  TEST_CASE("a full ring is a return value, and nothing was done") {
    Rig rig({.blocks = 16}, 16);
    const auto data = pattern(200);  // 4 blocks
    SendBurst burst = rig.sq.burst();
    for (int i = 0; i < 3; ++i) REQUIRE(burst.send_inline(data));
    REQUIRE(burst.nop());
    REQUIRE_FALSE(burst.send_inline(data));
    CHECK(burst.size() == 4);
    for (int i = 0; i < 3; ++i) REQUIRE(burst.nop());
    CHECK_FALSE(burst.nop());
    CHECK(burst.ring() == 7);
    CHECK(rig.sq.free_blocks() == 0);
    CHECK(rig.complete_all().size() == 7);
  }

  TEST_CASE("requests that fill the ring before the k-th of them are still signalled") {
    Rig rig({.blocks = 16, .max_inline_bytes = 500}, 4);
    const auto data = pattern(400);  // 7 blocks
    {
      SendBurst burst = rig.sq.burst();
      REQUIRE(burst.send_inline(data, {.wr_id = 1}));
      REQUIRE(burst.send_inline(data, {.wr_id = 2}));
      REQUIRE_FALSE(burst.send_inline(data, {.wr_id = 3}));
    }
    CHECK(signalled(rig.complete_all()) == std::vector<bool>{0, 1});
    CHECK(rig.poll_all().size() == 1);
    CHECK(rig.sq.outstanding() == 0);
  }

  TEST_CASE("the completion queue bounds what can be posted, unsignalled requests included") {
    // 8 entries, one of them kept for the queue's own NOP.
    Rig rig({.blocks = 64}, 16, 8);
    SendBurst burst = rig.sq.burst();
    std::uint64_t posted = 0;
    while (burst.nop({.wr_id = posted})) ++posted;
    burst.ring();
    CHECK(posted == 7);
    CHECK(rig.cq.free_slots() == 0);
    CHECK(rig.sq.free_blocks() == 57);
    rig.complete_all();
    rig.poll_all();
    CHECK(rig.cq.free_slots() == 7);
  }

  TEST_CASE("signal_every is bounded by the ring, and 0 or 1 signals all") {
    Rig many({.blocks = 16}, 1000);
    post(many, 0, 9);
    CHECK(signalled(many.complete_all()) == std::vector<bool>{0, 0, 0, 1, 0, 0, 0, 1, 0});
    for (const std::uint32_t every : {0U, 1U}) {
      Rig all({.blocks = 16}, every);
      post(all, 0, 5);
      CHECK(signalled(all.complete_all()) == std::vector<bool>{1, 1, 1, 1, 1});
      CHECK(all.poll_all().size() == 5);
    }
  }

  TEST_CASE("a completion tells READs and atomics how much came back, and WRITEs nothing") {
    Rig rig({.blocks = 64}, 1);
    const Sge local{rig.send_memory.block(0), 8, 1};
    {
      SendBurst burst = rig.sq.burst();
      REQUIRE(burst.read(local, {1, 2}, {.wr_id = 1}));
      REQUIRE(burst.read(local, {1, 2}, {.wr_id = 2}));
      REQUIRE(burst.write(local, {1, 2}, {.wr_id = 3}));
      REQUIRE(burst.fetch_add(local, {1, 2}, 1, {.wr_id = 4}));
      REQUIRE(burst.cmp_swap(local, {1, 2}, 1, 2, {.wr_id = 5}));
    }
    while (auto wqe = rig.send_memory.take())
      rig.cq_memory.put_send(wqe->opcode, rig.send_memory.qpn(), wqe->index, 0x1234);
    const auto completions = rig.poll_all();
    REQUIRE(completions.size() == 5);
    const std::uint32_t lengths[] = {0x1234, 0x1234, 0, 0x1234, 0x1234};
    const Opcode opcodes[] = {Opcode::read, Opcode::read, Opcode::write, Opcode::fetch_add, Opcode::cmp_swap};
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(completions[i].byte_len == lengths[i]);
      CHECK(completions[i].opcode == opcodes[i]);
      CHECK(completions[i].wr_id == i + 1);
      CHECK(completions[i].qpn == rig.send_memory.qpn());
      CHECK(completions[i].status == Status::success);
      CHECK(completions[i].vendor_syndrome == 0);
      CHECK_FALSE(completions[i].has_imm());
      CHECK_FALSE(is_receive(completions[i].opcode));
    }
  }

  TEST_CASE("an unsignalled request that fails retires those before it, and all behind it are flushed") {
    Rig rig({.blocks = 64}, 16);
    post(rig, 10, 6);
    std::vector<Wqe> wqes;
    while (auto wqe = rig.send_memory.take()) wqes.push_back(*wqe);
    REQUIRE(wqes.size() == 6);
    CHECK_FALSE(wqes[2].signalled());
    rig.cq_memory.put_send_error(Opcode::send, rig.send_memory.qpn(), wqes[2].index,
                                 Status::remote_access_error, 0x88);
    for (std::size_t i = 3; i < 6; ++i)
      rig.cq_memory.put_send_error(Opcode::send, rig.send_memory.qpn(), wqes[i].index, Status::flushed, 0xf9);
    const auto completions = rig.poll_all();
    REQUIRE(completions.size() == 4);
    CHECK(completions[0].wr_id == 12);
    CHECK(completions[0].wr_count == 3);
    CHECK(completions[0].status == Status::remote_access_error);
    CHECK(completions[0].vendor_syndrome == 0x88);
    CHECK(completions[0].opcode == Opcode::send);
    for (std::size_t i = 1; i < 4; ++i) {
      CHECK(completions[i].wr_id == 12 + i);
      CHECK(completions[i].wr_count == 1);
      CHECK(completions[i].status == Status::flushed);
    }
    CHECK(rig.sq.outstanding() == 0);
    CHECK(rig.sq.free_blocks() == 64);
    CHECK(rig.cq.free_slots() == 255);
  }

  TEST_CASE("a failed queue refuses every kind of request, and rings for none") {
    Rig rig({.blocks = 64}, 16);
    post(rig, 0, 1);
    const auto wqe = rig.send_memory.take();
    REQUIRE(wqe);
    rig.cq_memory.put_send_error(Opcode::send, rig.send_memory.qpn(), wqe->index, Status::retry_exceeded);
    REQUIRE(rig.poll_all().size() == 1);
    CHECK(rig.sq.failed());
    const std::uint64_t doorbells = rig.sq.doorbells();
    const Sge local{rig.send_memory.block(0), 8, 1};
    const auto data = pattern(8);
    {
      SendBurst burst = rig.sq.burst();
      CHECK_FALSE(burst.nop());
      CHECK_FALSE(burst.send(local));
      CHECK_FALSE(burst.send_inline(data));
      CHECK_FALSE(burst.write(local, {1, 2}));
      CHECK_FALSE(burst.read(local, {1, 2}));
      CHECK_FALSE(burst.fetch_add(local, {1, 2}, 3));
      CHECK_FALSE(burst.send_to(Address{}, local));
      CHECK(burst.ring() == 0);
    }
    CHECK(rig.sq.doorbells() == doorbells);
    CHECK(rig.sq.outstanding() == 0);
  }

  TEST_CASE("the queue's own NOP is flushed without a completion") {
    Rig rig({.blocks = 64}, 4);
    post(rig, 0, 6);
    std::vector<Wqe> wqes;
    while (auto wqe = rig.send_memory.take()) wqes.push_back(*wqe);
    rig.cq_memory.put_send(Opcode::send, rig.send_memory.qpn(), wqes[3].index);
    REQUIRE(rig.poll_all().size() == 1);
    const auto nop = rig.send_memory.take();
    REQUIRE(nop);
    REQUIRE(nop->opcode == Opcode::nop);
    // The QP goes to the error state: requests 4 and 5, then the NOP, are flushed.
    for (std::size_t i : {4U, 5U})
      rig.cq_memory.put_send_error(Opcode::send, rig.send_memory.qpn(), wqes[i].index, Status::flushed);
    rig.cq_memory.put_send_error(Opcode::nop, rig.send_memory.qpn(), nop->index, Status::flushed);
    const auto completions = rig.poll_all();
    REQUIRE(completions.size() == 2);
    CHECK(completions[0].wr_id == 4);
    CHECK(completions[1].wr_id == 5);
    CHECK(rig.sq.free_blocks() == 64);
    CHECK(rig.cq.free_slots() == 255);
  }

  TEST_CASE("two open bursts can't promise the same room in a completion queue") {
    CqMemory cq_memory(8);
    CompletionQueue cq(cq_memory.ring());
    SendMemory first({.blocks = 64, .qpn = 1});
    SendMemory second({.blocks = 64, .qpn = 2});
    SendQueue a(first.ring(), cq, 16);
    SendQueue b(second.ring(), cq, 16);
    cq.attach(1, &a, nullptr);
    cq.attach(2, &b, nullptr);
    {
      SendBurst on_a = a.burst();
      SendBurst on_b = b.burst();
      for (int i = 0; i < 5; ++i) {
        on_a.nop();
        on_b.nop();
      }
    }
    CHECK(a.outstanding() + b.outstanding() <= 6);
    CHECK(cq.free_slots() == 6 - a.outstanding() - b.outstanding());
  }

  TEST_CASE("receives that are posted while a burst is open can't take room it was promised") {
    CqMemory cq_memory(8);
    CompletionQueue cq(cq_memory.ring());
    SendMemory memory({.blocks = 64, .qpn = 1});
    RecvMemory recv_memory(16, 16);
    SendQueue sq(memory.ring(), cq, 16);
    RecvQueue rq(recv_memory.ring(), cq);
    cq.attach(1, &sq, &rq);
    {
      SendBurst burst = sq.burst();
      CHECK(burst.nop());
      for (int i = 0; i < 5; ++i) rq.post({memory.block(0), 64, 1});
      for (int i = 0; i < 5; ++i) burst.nop();
    }
    CHECK(sq.outstanding() + rq.outstanding() <= 7);
    CHECK(cq.free_slots() == 7 - sq.outstanding() - rq.outstanding());
  }
}
