#include "expected_wqe.hpp"
#include "memory_device.hpp"

using namespace memory_device;

namespace {

constexpr std::uint32_t qpn = 0x42;

struct RecvRig {
  explicit RecvRig(std::uint32_t count = 8, std::uint32_t stride = 16, std::uint32_t cq_entries = 64)
      : cq_memory(cq_entries), memory(count, stride), cq(cq_memory.ring()), rq(memory.ring(), cq) {
    cq.attach(qpn, nullptr, &rq);
  }

  CqMemory cq_memory;
  RecvMemory memory;
  CompletionQueue cq;
  RecvQueue rq;
};

std::byte buffer[256];

bool is_segment(const std::byte* at, std::uint32_t bytes, std::uint32_t lkey, const void* address) {
  mlx5_wqe_data_seg segment{};
  mlx5dv_set_data_seg(&segment, bytes, lkey, reinterpret_cast<std::uintptr_t>(address));
  return std::memcmp(at, &segment, sizeof segment) == 0;
}

bool is_terminator(const std::byte* at) { return is_segment(at, 0, MLX5_INVALID_LKEY, nullptr); }

bool is_untouched(const std::byte* at, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (at[i] != untouched) return false;
  return true;
}

}  // namespace

TEST_SUITE("queue.recv_queue") {
  TEST_CASE("a buffer is one data segment, without a terminator where the stride has no room for one") {
    RecvRig rig(8, 16);
    CHECK(rig.rq.max_sge() == 1);
    CHECK(rig.rq.post({buffer, 0x12345, 0xabcdef01}, 7));
    CHECK(is_segment(rig.memory.wqe(0), 0x12345, 0xabcdef01, buffer));
    CHECK(is_untouched(rig.memory.wqe(1), 7 * 16));
  }

  TEST_CASE("a list shorter than the stride ends with the invalid lkey") {
    RecvRig rig(4, 64);
    CHECK(rig.rq.max_sge() == 4);
    CHECK(rig.rq.post({buffer, 10, 1}));
    CHECK(is_segment(rig.memory.wqe(0), 10, 1, buffer));
    CHECK(is_terminator(rig.memory.wqe(0) + 16));
    const Sge three[] = {{buffer, 10, 1}, {buffer + 10, 20, 2}, {buffer + 30, 30, 3}};
    CHECK(rig.rq.post(three));
    for (std::uint32_t i = 0; i < 3; ++i)
      CHECK(is_segment(rig.memory.wqe(1) + i * 16, three[i].bytes, three[i].lkey, three[i].address));
    CHECK(is_terminator(rig.memory.wqe(1) + 48));
    const Sge four[] = {{buffer, 10, 1}, {buffer + 10, 20, 2}, {buffer + 30, 30, 3}, {buffer + 60, 40, 4}};
    CHECK(rig.rq.post(four));
    for (std::uint32_t i = 0; i < 4; ++i)
      CHECK(is_segment(rig.memory.wqe(2) + i * 16, four[i].bytes, four[i].lkey, four[i].address));
    CHECK(is_untouched(rig.memory.wqe(3), 64));
  }

  TEST_CASE("entries of zero bytes are left out of a list, and an empty list is a terminator") {
    RecvRig rig(4, 64);
    const Sge list[] = {{buffer, 0, 1}, {buffer + 10, 20, 2}, {buffer, 0, 3}, {buffer + 60, 40, 4}};
    CHECK(rig.rq.post(list));
    CHECK(is_segment(rig.memory.wqe(0), 20, 2, buffer + 10));
    CHECK(is_segment(rig.memory.wqe(0) + 16, 40, 4, buffer + 60));
    CHECK(is_terminator(rig.memory.wqe(0) + 32));
    CHECK(rig.rq.post(std::span<const Sge>{}));
    CHECK(is_terminator(rig.memory.wqe(1)));
  }

  TEST_CASE("a single buffer of zero bytes is a terminator: mlx5 would take it for two gigabytes") {
    for (const std::uint32_t stride : {16U, 32U}) {
      RecvRig rig(4, stride);
      CHECK(rig.rq.post({buffer, 0, 1}, 5));
      CHECK(is_terminator(rig.memory.wqe(0)));
      CHECK(rig.rq.outstanding() == 1);
    }
  }

  TEST_CASE("the device learns of buffers by publish() only, all at once") {
    RecvRig rig;
    CHECK(rig.rq.post({buffer, 1, 1}));
    CHECK(rig.rq.post({buffer, 1, 1}));
    CHECK(rig.memory.record() == 0);
    rig.rq.publish();
    CHECK(rig.memory.record() == 2);
    CHECK(rig.rq.posted_total() == 2);
    rig.memory.record_be = 0;
    rig.rq.publish();  // nothing new
    CHECK(rig.memory.record() == 0);
  }

  TEST_CASE("a full ring refuses, and takes one for each that comes back, over many laps and past 16 bits") {
    RecvRig rig(8, 16);
    std::uint64_t posted = 0;
    while (rig.rq.post({buffer, 1, 1}, posted)) ++posted;
    CHECK(posted == 8);
    CHECK(rig.rq.free() == 0);
    CHECK(rig.cq.free_slots() == 64 - 8);
    rig.rq.publish();
    for (std::uint64_t received = 0; received < 70000; ++received) {
      rig.cq_memory.put_receive(Opcode::recv, qpn, {.byte_len = 1});
      Completion completion{};
      REQUIRE(rig.cq.poll(&completion, 1) == 1);
      REQUIRE(completion.wr_id == received);
      REQUIRE(rig.rq.free() == 1);
      REQUIRE(rig.rq.post({buffer + posted % 100, 1, static_cast<std::uint32_t>(posted)}, posted));
      REQUIRE(is_segment(rig.memory.wqe(static_cast<std::uint32_t>(posted)), 1,
                         static_cast<std::uint32_t>(posted), buffer + posted % 100));
      REQUIRE_FALSE(rig.rq.post({buffer, 1, 1}));
      ++posted;
      rig.rq.publish();
      REQUIRE(rig.memory.record() == (posted & 0xffff));
    }
    CHECK(rig.rq.posted_total() == posted);
  }

  TEST_CASE("the completion queue bounds what can be posted") {
    RecvRig rig(64, 16, 4);
    std::uint64_t posted = 0;
    while (rig.rq.post({buffer, 1, 1}, posted)) ++posted;
    CHECK(posted == 4);
    CHECK(rig.cq.free_slots() == 0);
    rig.cq_memory.put_receive(Opcode::recv, qpn, {});
    Completion completion{};
    CHECK(rig.cq.poll(&completion, 1) == 1);
    CHECK(rig.rq.post({buffer, 1, 1}));
  }

  TEST_CASE("a queue without entries takes nothing") {
    CqMemory cq_memory(8);
    CompletionQueue cq(cq_memory.ring());
    RecvQueue rq(RecvRing{}, cq);
    CHECK_FALSE(rq.post({buffer, 1, 1}));
    CHECK(rq.free() == 0);
    rq.publish();
    CHECK(cq.free_slots() == 8);
  }

  TEST_CASE("each kind of arrival completes with what came") {
    RecvRig rig;
    for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(rig.rq.post({buffer, 64, 1}, 100 + i));
    rig.rq.publish();
    rig.cq_memory.put_receive(Opcode::recv, qpn, {.byte_len = 64, .src_qpn = 0x99, .grh = true});
    rig.cq_memory.put_receive(Opcode::recv_with_imm, qpn,
                              {.byte_len = 3, .imm = 0x01020304, .solicited = true});
    rig.cq_memory.put_receive(Opcode::recv_with_inv, qpn, {.byte_len = 4, .imm = 0xcafe});
    rig.cq_memory.put_receive(Opcode::recv_write_with_imm, qpn, {.byte_len = 1U << 31, .imm = 0xffffffff});
    Completion out[8];
    REQUIRE(rig.cq.poll(out, 8) == 4);
    CHECK(out[0].opcode == Opcode::recv);
    CHECK(out[0].byte_len == 64);
    CHECK(out[0].src_qpn == 0x99);
    CHECK(out[0].grh_present);
    CHECK_FALSE(out[0].solicited);
    CHECK_FALSE(out[0].has_imm());
    CHECK(out[1].opcode == Opcode::recv_with_imm);
    CHECK(out[1].imm == 0x01020304);
    CHECK(out[1].has_imm());
    CHECK(out[1].solicited);
    CHECK_FALSE(out[1].grh_present);
    CHECK(out[2].opcode == Opcode::recv_with_inv);
    CHECK(out[2].imm == 0xcafe);
    CHECK_FALSE(out[2].has_imm());
    CHECK(out[3].opcode == Opcode::recv_write_with_imm);
    CHECK(out[3].byte_len == 1U << 31);
    CHECK(out[3].has_imm());
    for (std::uint64_t i = 0; i < 4; ++i) {
      CHECK(out[i].wr_id == 100 + i);
      CHECK(out[i].wr_count == 1);
      CHECK(out[i].qpn == qpn);
      CHECK(out[i].ok());
      CHECK(is_receive(out[i].opcode));
    }
    CHECK(rig.rq.outstanding() == 0);
  }

  TEST_CASE("receive errors keep their wr_id and say what happened") {
    RecvRig rig;
    for (std::uint64_t i = 0; i < 3; ++i) REQUIRE(rig.rq.post({buffer, 64, 1}, 100 + i));
    rig.rq.publish();
    rig.cq_memory.put_receive_error(qpn, Status::local_length_error, 0x21);
    rig.cq_memory.put_receive_error(qpn, Status::flushed, 0xf9);
    rig.cq_memory.put_receive_error(qpn, Status::flushed, 0xf9);
    Completion out[8];
    REQUIRE(rig.cq.poll(out, 8) == 3);
    CHECK(out[0].status == Status::local_length_error);
    CHECK(out[0].vendor_syndrome == 0x21);
    CHECK(out[2].status == Status::flushed);
    for (std::uint64_t i = 0; i < 3; ++i) {
      CHECK(out[i].wr_id == 100 + i);
      CHECK(out[i].opcode == Opcode::recv_error);
    }
    CHECK(rig.cq.free_slots() == 64);
  }

  TEST_CASE("a completion for a buffer that was never posted is passed over") {
    RecvRig rig;
    rig.cq_memory.put_receive(Opcode::recv, qpn, {.byte_len = 1});
    Completion completion{};
    CHECK(rig.cq.poll(&completion, 1) == 0);
    CHECK(rig.cq.free_slots() == 64);
    CHECK(rig.rq.outstanding() == 0);
    CHECK(rig.cq_memory.occupied() == 0);
  }
}
