// Requests that a NIC refuses: with which status on which side, and what it leaves alone.
#include <fmt/format.h>

#include <string>

#include "pollen/base/error.hpp"
#include "raw_rig.hpp"

using namespace rig;
using driver::Access;
using driver::QpState;

namespace {

using Post = std::function<bool(queue::SendBurst&)>;

// Posts it on a's QP, and gives the first completion's status, which has to come.
Status outcome(Pair& pair, const Post& post) {
  const std::size_t before = pair.a.sent.size();
  {
    auto burst = pair.a.qp().send_burst();
    REQUIRE(post(burst));
  }
  REQUIRE(pair.until([&] { return pair.a.sent.size() > before; }));
  return pair.a.sent[before].status;
}

struct Operation {
  const char* name;
  std::function<bool(queue::SendBurst&, Sge, queue::Remote)> post;
  Access needs;
};

const Operation remote_operations[] = {
    {"WRITE", [](auto& burst, Sge local, queue::Remote to) { return burst.write(local, to); }, Access::remote_write},
    {"WRITE_WITH_IMM",
     [](auto& burst, Sge local, queue::Remote to) { return burst.write_with_imm(local, to, 1); },
     Access::remote_write},
    {"READ", [](auto& burst, Sge local, queue::Remote to) { return burst.read(local, to); }, Access::remote_read},
    {"FETCH_ADD", [](auto& burst, Sge local, queue::Remote to) { return burst.fetch_add(local, to, 1); },
     Access::remote_atomic},
    {"CMP_SWAP", [](auto& burst, Sge local, queue::Remote to) { return burst.cmp_swap(local, to, 0, 1); },
     Access::remote_atomic},
};

bool is_zero(const End& end, std::size_t offset, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (end.memory[offset + i] != std::byte{0}) return false;
  return true;
}

bool says(const std::vector<driver::Event>& events, driver::Event::Kind kind, std::uint32_t number,
          const char* words) {
  for (const auto& event : events)
    if (event.kind == kind && event.number == number && event.text.find(words) != std::string::npos) return true;
  return false;
}

// The peer's refusal, in full: status, states, event, and nothing touched on either side.
void check_remote_refusal(Pair& pair, const Operation& operation, queue::Remote to,
                          Status expected = Status::remote_access_error) {
  pair.b.qp().post_receive(pair.b.sge(900'000, 64));
  pair.b.qp().publish_receives();
  pair.a.fill(0, 8, 5);
  std::vector<std::byte> theirs(pair.b.memory);
  CHECK(outcome(pair, [&](auto& burst) { return operation.post(burst, pair.a.sge(0, 8), to); }) == expected);
  CHECK(pair.a.qp().control().state() == QpState::error);
  CHECK(pair.b.qp().control().state() == QpState::error);
  CHECK(pair.b.memory == theirs);
  CHECK(pair.a.holds(0, 8, 5));
  CHECK(says(events_of(pair.b), driver::Event::Kind::qp_error, pair.b.qp().qpn(), "error state"));
  CHECK(says(events_of(pair.a), driver::Event::Kind::qp_error, pair.a.qp().qpn(), "error state"));
  REQUIRE(pair.until([&] { return pair.b.received.size() == 1; }));
  CHECK(pair.b.received[0].status == Status::flushed);
}

}  // namespace

TEST_SUITE("soft.errors.remote") {
  TEST_CASE("a key that does not exist is refused, for every operation") {
    for (const auto& operation : remote_operations)
      for (const std::uint32_t flip : {1U, 0x100U, 0x80000000U, 0xff00U}) {
        CAPTURE(operation.name);
        CAPTURE(flip);
        Pair pair;
        queue::Remote to = pair.b.remote(64);
        to.rkey ^= flip;
        check_remote_refusal(pair, operation, to);
      }
    for (const std::uint32_t key : {0U, 0xffffffffU, 0x100U, 1U}) {
      CAPTURE(key);
      Pair pair;
      check_remote_refusal(pair, remote_operations[0], {pair.b.remote(64).address, key});
    }
  }

  TEST_CASE("one byte beyond the region, before it or round the end of the address space is refused") {
    for (const auto& operation : remote_operations) {
      CAPTURE(operation.name);
      const bool atomic = operation.needs == Access::remote_atomic;
      // The region is [4096, 4096 + 64) of b's memory; everything posted is 8 bytes long.
      const std::uint64_t step = atomic ? 8 : 1;
      for (const std::int64_t offset : {std::int64_t{4096 - static_cast<std::int64_t>(step)},
                                        std::int64_t{4096 + 64 - 8 + static_cast<std::int64_t>(step)},
                                        std::int64_t{4096 + 64}, std::int64_t{1} << 40}) {
        CAPTURE(offset);
        Pair pair;
        auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(4096, 64), driver::all_access);
        const auto base = reinterpret_cast<std::uint64_t>(pair.b.memory.data());
        check_remote_refusal(pair, operation, {base + static_cast<std::uint64_t>(offset), window->rkey()});
      }
      for (const std::uint64_t address : {~std::uint64_t{0} - 7, ~std::uint64_t{0} << 3, std::uint64_t{0}}) {
        Pair pair;
        check_remote_refusal(pair, operation, {address, pair.b.region->rkey()});
      }
    }
  }

  TEST_CASE("the whole region, to its first and its last byte, is allowed") {
    Pair pair;
    auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(4096, 64), driver::all_access);
    pair.a.fill(0, 64, 3);
    CHECK(outcome(pair, [&](auto& burst) {
            return burst.write(pair.a.sge(0, 64), {pair.b.remote(4096).address, window->rkey()});
          }) == Status::success);
    CHECK(pair.b.holds(4096, 64, 3));
    CHECK(outcome(pair, [&](auto& burst) {
            return burst.fetch_add(pair.a.sge(100, 8), {pair.b.remote(4096 + 56).address, window->rkey()}, 1);
          }) == Status::success);
  }

  TEST_CASE("a request of no bytes needs no key, as on hardware") {
    Pair pair;
    CHECK(outcome(pair, [&](auto& burst) { return burst.write(Sge{}, {1, 2}); }) == Status::success);
    CHECK(outcome(pair, [&](auto& burst) { return burst.read(Sge{}, {1, 2}); }) == Status::success);
  }

  TEST_CASE("a message that runs over the region's end is refused before its first byte is written") {
    Pair pair;
    auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 10'000), driver::all_access);
    pair.a.fill(0, 10'001, 3);
    CHECK(outcome(pair, [&](auto& burst) {
            return burst.write(pair.a.sge(0, 10'001), {pair.b.remote(0).address, window->rkey()});
          }) == Status::remote_access_error);
    CHECK(is_zero(pair.b, 0, 10'001));
  }

  TEST_CASE("each operation needs its own access of the region and of the QP") {
    const Access flags[] = {Access::remote_write, Access::remote_read, Access::remote_atomic};
    for (const auto& operation : remote_operations)
      for (unsigned mask = 0; mask < 8; ++mask)
        for (const bool of_region : {true, false}) {
          Access granted = Access::local_write;
          for (unsigned i = 0; i < 3; ++i)
            if ((mask & 1U << i) != 0) granted = granted | flags[i];
          CAPTURE(operation.name);
          CAPTURE(mask);
          CAPTURE(of_region);
          QpOptions options;
          if (!of_region) options.init.remote_access = granted;
          Pair pair(options, in_process(), 1 << 20, of_region ? granted : driver::all_access);
          // The receive for WRITE_WITH_IMM.
          pair.b.qp().post_receive(Sge{});
          pair.b.qp().publish_receives();
          const Status status = outcome(
              pair, [&](auto& burst) { return operation.post(burst, pair.a.sge(0, 8), pair.b.remote(64)); });
          const bool allowed = driver::allows(granted, operation.needs);
          CHECK(status == (allowed ? Status::success : Status::remote_access_error));
          if (!allowed) CHECK(is_zero(pair.b, 64, 8));
        }
  }

  TEST_CASE("a key of another protection domain is refused") {
    for (const auto& operation : remote_operations) {
      CAPTURE(operation.name);
      Pair pair;
      auto other = pair.device->create_pd();
      auto region = other->register_memory(pair.b.memory, driver::all_access);
      check_remote_refusal(pair, operation, {pair.b.remote(64).address, region->rkey()});
    }
  }

  TEST_CASE("a key of the sender's own region opens nothing at the peer unless the domain is the same") {
    Pair pair;
    check_remote_refusal(pair, remote_operations[0], {pair.a.remote(64).address, pair.a.region->rkey()});
  }

  TEST_CASE("after a region has ended its key is refused, and the next region's key is another one") {
    for (const auto& operation : remote_operations) {
      CAPTURE(operation.name);
      Pair pair;
      auto window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 4096), driver::all_access);
      const std::uint32_t stale = window->rkey();
      window.reset();
      window = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 4096), driver::all_access);
      CHECK(window->rkey() != stale);
      check_remote_refusal(pair, operation, {pair.b.remote(64).address, stale});
    }
  }

  TEST_CASE("an atomic on an address that is not a multiple of 8 is an invalid request") {
    for (const std::size_t offset : {65UL, 68UL, 71UL})
      for (const auto& operation : remote_operations) {
        if (operation.needs != Access::remote_atomic) continue;
        CAPTURE(offset);
        Pair pair;
        check_remote_refusal(pair, operation, pair.b.remote(offset), Status::remote_invalid_request);
      }
  }

  TEST_CASE("a message longer than the receive buffer fails on both sides") {
    for (const std::uint32_t bytes : {65U, 1024U, 1025U, 100'000U})
      for (const bool is_inline : {true, false}) {
        if (is_inline && bytes > 200) continue;
        CAPTURE(bytes);
        Pair pair;
        pair.b.qp().post_receive(pair.b.sge(0, bytes - 1), 41);
        pair.b.qp().post_receive(pair.b.sge(0, bytes - 1), 42);
        pair.b.qp().publish_receives();
        pair.a.fill(0, bytes, 1);
        CHECK(outcome(pair, [&](auto& burst) {
                return is_inline ? burst.send_inline({pair.a.memory.data(), bytes}) : burst.send(pair.a.sge(0, bytes));
              }) == Status::remote_invalid_request);
        REQUIRE(pair.until([&] { return pair.b.received.size() == 2; }));
        CHECK(pair.b.received[0].status == Status::local_length_error);
        CHECK(pair.b.received[0].wr_id == 41);
        CHECK(pair.b.received[1].status == Status::flushed);
        CHECK(pair.b.received[1].wr_id == 42);
        CHECK(is_zero(pair.b, bytes - 1, 64));
        CHECK(says(events_of(pair.b), driver::Event::Kind::qp_error, pair.b.qp().qpn(), "longer than the receive buffer"));
      }
  }

  TEST_CASE("a receive buffer that its region does not cover, or does not let write, fails on both sides") {
    for (const int what : {0, 1, 2}) {
      CAPTURE(what);
      Pair pair;
      auto readable = pair.b.pd->register_memory(std::span(pair.b.memory).subspan(0, 4096), Access::none);
      auto other_pd = pair.device->create_pd();
      auto foreign = other_pd->register_memory(pair.b.memory, driver::all_access);
      const Sge buffers[] = {{pair.b.memory.data(), 64, readable->lkey()},
                             {pair.b.memory.data() + pair.b.memory.size() - 63, 64, pair.b.region->lkey()},
                             {pair.b.memory.data(), 64, foreign->lkey()}};
      pair.b.qp().post_receive(buffers[what], 9);
      pair.b.qp().publish_receives();
      pair.a.fill(0, 64, 3);
      CHECK(outcome(pair, [&](auto& burst) { return burst.send(pair.a.sge(0, 64)); }) ==
            Status::remote_operation_error);
      REQUIRE(pair.until([&] { return !pair.b.received.empty(); }));
      CHECK(pair.b.received[0].status == Status::local_protection_error);
      CHECK(pair.b.received[0].wr_id == 9);
      CHECK(is_zero(pair.b, 0, 64));
    }
  }

  TEST_CASE("SEND_WITH_INV of a key that may not be invalidated, or is another domain's, is refused") {
    for (const int what : {0, 1, 2}) {
      CAPTURE(what);
      Pair pair;
      auto other_pd = pair.device->create_pd();
      auto foreign = other_pd->register_memory(pair.b.memory, driver::all_access | Access::remote_invalidate);
      const std::uint32_t keys[] = {pair.b.region->rkey(), foreign->rkey(), 0x12345678U};
      pair.b.qp().post_receive(pair.b.sge(0, 64));
      pair.b.qp().publish_receives();
      CHECK(outcome(pair, [&](auto& burst) { return burst.send_with_inv(pair.a.sge(0, 8), keys[what]); }) ==
            Status::remote_access_error);
      // The key still opens what it opened.
      CHECK(pair.b.qp().control().state() == QpState::error);
    }
  }

  TEST_CASE("more READs than the responder agreed to end the connection instead of its memory") {
    QpOptions options;
    options.rtr.reads_in = 1;
    options.rts.reads_out = 16;
    Pair pair(options);
    {
      auto burst = pair.a.qp().send_burst();
      for (int i = 0; i < 16; ++i) burst.read(pair.a.sge(0, 100'000), pair.b.remote(0));
    }
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 16; }));
    bool refused = false;
    for (const auto& done : pair.a.sent)
      refused = refused || done.status == Status::remote_invalid_request;
    CHECK(refused);
  }
}

TEST_SUITE("soft.errors.local") {
  TEST_CASE("a gather entry that its key does not cover fails at home, and nothing reaches the peer") {
    for (int what = 0; what < 7; ++what) {
      CAPTURE(what);
      Pair pair;
      auto other_pd = pair.device->create_pd();
      auto foreign = other_pd->register_memory(pair.a.memory, driver::all_access);
      auto small = pair.a.pd->register_memory(std::span(pair.a.memory).subspan(1000, 64), driver::all_access);
      auto ended = pair.a.pd->register_memory(pair.a.memory, driver::all_access);
      const std::uint32_t stale = ended->lkey();
      ended.reset();
      const std::byte* m = pair.a.memory.data();
      const Sge bad[] = {{m, 64, pair.a.region->lkey() ^ 1},
                         {m, 64, foreign->lkey()},
                         {m + 1000, 65, small->lkey()},
                         {m + 999, 64, small->lkey()},
                         {reinterpret_cast<const void*>(~std::uintptr_t{0} - 7), 64, pair.a.region->lkey()},
                         {m, 64, stale},
                         {m, 64, 0}};
      pair.b.qp().post_receive(pair.b.sge(0, 4096), 1);
      pair.b.qp().publish_receives();
      const bool also_second_entry = what % 2 == 1;
      const Sge both[] = {pair.a.sge(0, 64), bad[what]};
      CHECK(outcome(pair, [&](auto& burst) {
              return also_second_entry ? burst.send(std::span<const Sge>(both)) : burst.send(bad[what]);
            }) == Status::local_protection_error);
      CHECK(pair.a.qp().control().state() == QpState::error);
      CHECK_FALSE(pair.until([&] { return !pair.b.received.empty(); }, std::chrono::milliseconds(2)));
      CHECK(pair.b.qp().control().state() == QpState::rts);
    }
  }

  TEST_CASE("a READ or an atomic into memory without local write access fails at home") {
    for (const auto& operation : remote_operations) {
      CAPTURE(operation.name);
      Pair pair;
      auto readable = pair.a.pd->register_memory(std::span(pair.a.memory).subspan(0, 4096), Access::remote_read);
      const Sge local{pair.a.memory.data(), 8, readable->lkey()};
      pair.b.qp().post_receive(Sge{});
      pair.b.qp().publish_receives();
      const bool writes_here = operation.needs != Access::remote_write;
      CHECK(outcome(pair, [&](auto& burst) { return operation.post(burst, local, pair.b.remote(64)); }) ==
            (writes_here ? Status::local_protection_error : Status::success));
      if (operation.needs == Access::remote_atomic) CHECK(is_zero(pair.b, 64, 8));
    }
  }

  TEST_CASE("a region that ends while a request waits fails that request and no earlier one") {
    Pair pair;
    auto window = pair.a.pd->register_memory(std::span(pair.a.memory).subspan(0, 4096), driver::all_access);
    {
      auto burst = pair.a.qp().send_burst();
      burst.write(pair.a.sge(8192, 100), pair.b.remote(0), {.wr_id = 1});
      burst.write({pair.a.memory.data(), 100, window->lkey()}, pair.b.remote(0), {.wr_id = 2});
      burst.write(pair.a.sge(8192, 100), pair.b.remote(0), {.wr_id = 3});
    }
    window.reset();
    REQUIRE(pair.until([&] { return pair.a.sent.size() == 3; }));
    CHECK(pair.a.sent[0].ok());
    CHECK(pair.a.sent[1].status == Status::local_protection_error);
    CHECK(pair.a.sent[1].wr_id == 2);
    CHECK(pair.a.sent[2].status == Status::flushed);
  }

  TEST_CASE("memory without local write access can't be opened for remote writes, in words") {
    Pair pair;
    for (const Access access : {Access::remote_write, Access::remote_atomic}) {
      try {
        auto region = pair.a.pd->register_memory(pair.a.memory, access);
        FAIL("it was registered");
      } catch (const Error& error) {
        CHECK(std::string(error.what()).find("local write access") != std::string::npos);
      }
    }
    CHECK_THROWS_AS(pair.a.pd->register_memory({}, driver::all_access), Error);
  }
}

TEST_SUITE("soft.errors.wqe") {
  // One WQE by hand between two that are good.
  struct Malformed {
    Malformed()
        : cq(pair.a.port->create_cq(64)), recv_cq(pair.b.port->create_cq(64)),
          a(pair.a, cq.control(), recv_cq.control(), options), b(pair.b, recv_cq.control(), recv_cq.control(), options) {
      connect_raw(a.control(), pair.a, b.control(), pair.b, options);
      for (int i = 0; i < 4; ++i) b.post_receive(pair.b.sge(0, 64));
    }
    RawWqe good() {
      RawWqe wqe(MLX5_OPCODE_RDMA_WRITE);
      wqe.remote(pair.b.remote(512).address, pair.b.region->rkey()).data(pair.a.sge(0, 64));
      return wqe;
    }
    // The status that the middle one of three gets; those around it are checked here.
    std::uint8_t outcome(const RawWqe& wqe) {
      const std::uint16_t first = a.post(good());
      const std::uint16_t middle = a.post(wqe);
      a.post(good());
      a.ring();
      std::vector<RawCqe> done;
      REQUIRE(pair.until([&] {
        while (auto cqe = cq.next()) done.push_back(*cqe);
        return done.size() >= 3 || (done.size() >= 2 && done[1].opcode == MLX5_CQE_REQ_ERR);
      }));
      CHECK(done[0].opcode == MLX5_CQE_REQ);
      CHECK(done[0].counter == first);
      CHECK(done[1].counter == middle);
      CHECK(done[1].qpn == a.qpn());
      if (done[1].opcode != MLX5_CQE_REQ_ERR) return 0;
      CHECK(a.control().state() == QpState::error);
      CHECK(b.control().state() == QpState::rts);
      return done[1].syndrome;
    }

    QpOptions options;
    Pair pair;
    RawCq cq;
    RawCq recv_cq;
    RawQp a;
    RawQp b;
  };

  TEST_CASE("an opcode that does not exist, or that RC does not have, is a QP operation error") {
    for (const int opcode : {0x0e, 0x0f, 0x20, 0x25, 0x7f, 0xff, 0x02, 0x13}) {
      CAPTURE(opcode);
      Malformed rig;
      RawWqe wqe(static_cast<std::uint8_t>(opcode));
      wqe.remote(rig.pair.b.remote(0).address, rig.pair.b.region->rkey()).data(rig.pair.a.sge(0, 8));
      CHECK(rig.outcome(wqe) == MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
    }
  }

  TEST_CASE("a WQE with another QP's number is refused") {
    Malformed rig;
    RawWqe wqe = rig.good();
    wqe.says_qpn = rig.b.qpn();
    CHECK(rig.outcome(wqe) == MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
  }

  TEST_CASE("a WQE that is too short for its opcode is refused") {
    for (const std::uint8_t opcode :
         {MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_ATOMIC_CS})
      for (const std::uint32_t segments : {0U, 1U}) {
        CAPTURE(int{opcode});
        CAPTURE(segments);
        Malformed rig;
        RawWqe wqe(opcode);
        wqe.remote(rig.pair.b.remote(0).address, rig.pair.b.region->rkey()).nothing().nothing();
        wqe.says_segments = segments;
        CHECK(rig.outcome(wqe) == MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
      }
  }

  TEST_CASE("a WQE that says it is longer than what was rung for is refused") {
    Malformed rig;
    RawWqe wqe(MLX5_OPCODE_SEND);
    wqe.data(rig.pair.a.sge(0, 8));
    wqe.says_segments = 63;
    rig.a.post_and_ring(wqe);
    std::optional<RawCqe> done;
    REQUIRE(rig.pair.until([&] { return (done = rig.cq.next()).has_value(); }));
    CHECK(done->syndrome == MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
  }

  TEST_CASE("a READ or an atomic with inline data is refused") {
    for (const std::uint8_t opcode : {MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_ATOMIC_FA}) {
      Malformed rig;
      RawWqe wqe(opcode);
      wqe.remote(rig.pair.b.remote(0).address, rig.pair.b.region->rkey());
      if (opcode == MLX5_OPCODE_ATOMIC_FA) wqe.operands(1, 0);
      wqe.inline_head(8);
      CHECK(rig.outcome(wqe) == MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
      CHECK(is_zero(rig.pair.b, 0, 8));
    }
  }

  TEST_CASE("inline data that is longer than the WQE is refused") {
    for (const std::uint32_t bytes : {13U, 29U, 100U, 0x7fffffffU}) {
      CAPTURE(bytes);
      Malformed rig;
      RawWqe wqe(MLX5_OPCODE_SEND);
      wqe.inline_head(bytes);
      CHECK(rig.outcome(wqe) == MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
    }
    Malformed rig;
    RawWqe wqe(MLX5_OPCODE_SEND);
    wqe.inline_head(12);
    CHECK(rig.outcome(wqe) == 0);
  }

  TEST_CASE("an atomic of any length but 8 is refused") {
    for (const std::uint32_t bytes : {4U, 7U, 16U, 0U}) {
      CAPTURE(bytes);
      Malformed rig;
      RawWqe wqe(MLX5_OPCODE_ATOMIC_FA);
      wqe.remote(rig.pair.b.remote(0).address, rig.pair.b.region->rkey()).operands(1, 0);
      if (bytes != 0) wqe.data(rig.pair.a.sge(0, bytes));
      CHECK(rig.outcome(wqe) == MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
      CHECK(is_zero(rig.pair.b, 0, 8));
    }
  }

  TEST_CASE("gather lists that add up to more than 2^32 bytes are refused, not taken modulo 2^32") {
    // 2^31 bytes each: as mlx5 reads a count of 0.
    Malformed rig;
    RawWqe wqe(MLX5_OPCODE_SEND);
    for (int i = 0; i < 3; ++i) wqe.data(0, rig.pair.a.region->lkey(), rig.pair.a.memory.data());
    CHECK(rig.outcome(wqe) != 0);
    CHECK(rig.b.control().state() == QpState::rts);
  }

  TEST_CASE("a doorbell for blocks that nothing was written to ends the QP and nothing else") {
    Malformed rig;
    rig.a.ring_to(40'000);
    std::size_t seen = 0;
    bool first_failed = false;
    REQUIRE(rig.pair.until([&] {
      while (auto cqe = rig.cq.next()) {
        if (seen++ == 0) first_failed = cqe->opcode == MLX5_CQE_REQ_ERR;
        rig.cq.acknowledge();
      }
      return rig.a.control().state() == QpState::error && seen != 0;
    }));
    CHECK(first_failed);
    CHECK(rig.b.control().state() == QpState::rts);
    // The pair beside it still works.
    CHECK(::outcome(rig.pair, [&](auto& burst) { return burst.write(rig.pair.a.sge(0, 8), rig.pair.b.remote(0)); }) ==
          Status::success);
  }

  TEST_CASE("random bytes in a send ring end the QP at most") {
    std::uint64_t random = 88172645463325252ULL;
    const auto next = [&] {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      return random;
    };
    for (int round = 0; round < 300; ++round) {
      Malformed rig;
      const queue::SendRing& ring = rig.a.control().send_ring();
      for (std::uint32_t i = 0; i < ring.blocks * queue::block_bytes; ++i) ring.wqes[i] = static_cast<std::byte>(next());
      // Opcodes and QP numbers that get further than the first check.
      const std::uint8_t opcodes[] = {MLX5_OPCODE_SEND,      MLX5_OPCODE_SEND_IMM,  MLX5_OPCODE_RDMA_WRITE,
                                      MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_ATOMIC_CS,
                                      MLX5_OPCODE_NOP,       MLX5_OPCODE_SEND_INVAL};
      for (std::uint32_t i = 0; i < ring.blocks; ++i) {
        auto* ctrl = reinterpret_cast<queue::CtrlSegment*>(ring.wqes + i * queue::block_bytes);
        ctrl->opmod_idx_opcode = big_endian(std::uint32_t{opcodes[next() % std::size(opcodes)]});
        ctrl->qpn_ds = big_endian(rig.a.qpn() << 8 | static_cast<std::uint32_t>(next() & 0x3f));
        if (next() % 2 == 0) {
          auto* data = reinterpret_cast<queue::DataSegment*>(ring.wqes + i * queue::block_bytes + 16);
          data->byte_count = big_endian(static_cast<std::uint32_t>(next() % 70'000));
          data->lkey = big_endian(rig.pair.a.region->lkey());
          data->addr = big_endian(reinterpret_cast<std::uint64_t>(rig.pair.a.memory.data()));
        }
      }
      rig.a.ring_to(static_cast<std::uint32_t>(next() % 300));
      for (int turn = 0; turn < 40; ++turn) {
        rig.pair.a.turn();
        rig.pair.b.turn();
        while (rig.cq.next()) rig.cq.acknowledge();
      }
      REQUIRE(rig.b.control().state() != QpState::reset);
    }
  }
}

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
    for (const auto& done : pair.a.sent)
      CHECK(done.ok() == (done.qpn == a2.qpn()));
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
    QpOptions options;
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

TEST_SUITE("soft.errors.memory") {
  TEST_CASE("memory that the sender has taken back is not read by packets that are under way") {
    for (const bool read : {false, true}) {
      CAPTURE(read);
      QpOptions options;
      options.rts.timeout = 5;
      options.rts.retry_count = 2;
      Pair pair(options);
      End& owner = read ? pair.b : pair.a;
      auto buffer = std::make_unique<std::vector<std::byte>>(64'000);
      auto window = owner.pd->register_memory(*buffer, driver::all_access);
      pair.b.qp().post_receive(pair.b.sge(0, 64'000));
      pair.b.qp().publish_receives();
      const std::byte* at = buffer->data();
      if (read)
        pair.a.qp().send_burst().read(pair.a.sge(0, 64'000),
                                      {reinterpret_cast<std::uint64_t>(at), window->rkey()});
      else
        pair.a.qp().send_burst().send(Sge{at, 64'000, window->lkey()});
      pair.a.turn();
      if (read) pair.b.turn();
      // The packets lie in the lane. What was taken back belongs to the program again.
      if (!read) owner.qp().control().to_error();
      window.reset();
      buffer.reset();
      // AddressSanitizer watches this.
      for (int i = 0; i < 1000; ++i) {
        pair.a.turn();
        pair.b.turn();
      }
      REQUIRE(pair.until([&] { return !pair.a.sent.empty(); }));
      CHECK_FALSE(pair.a.sent[0].ok());
    }
  }
}
