// WQEs that no queue of ours would write.
#include <fmt/format.h>

#include "errors.hpp"
#include "pollen/base/error.hpp"

using namespace rig;

TEST_SUITE("soft.errors.wqe") {
  // One WQE by hand between two that are good.
  struct Malformed {
    Malformed()
        : cq(pair.a.port->create_cq(64)),
          recv_cq(pair.b.port->create_cq(64)),
          a(pair.a, cq.control(), recv_cq.control(), options),
          b(pair.b, recv_cq.control(), recv_cq.control(), options) {
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
    CHECK(rig::outcome(rig.pair, [&](auto& burst) {
            return burst.write(rig.pair.a.sge(0, 8), rig.pair.b.remote(0));
          }) == Status::success);
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
      for (std::uint32_t i = 0; i < ring.blocks * queue::block_bytes; ++i)
        ring.wqes[i] = static_cast<std::byte>(next());
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
