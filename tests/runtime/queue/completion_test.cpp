#include "pollen/queue/completion.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace pollen::queue;

TEST_SUITE("queue.completion") {
  TEST_CASE("opcodes and statuses have mlx5's numbers") {
    CHECK(static_cast<int>(Opcode::nop) == 0x00);
    CHECK(static_cast<int>(Opcode::send_with_inv) == 0x01);
    CHECK(static_cast<int>(Opcode::write) == 0x08);
    CHECK(static_cast<int>(Opcode::write_with_imm) == 0x09);
    CHECK(static_cast<int>(Opcode::send) == 0x0a);
    CHECK(static_cast<int>(Opcode::send_with_imm) == 0x0b);
    CHECK(static_cast<int>(Opcode::read) == 0x10);
    CHECK(static_cast<int>(Opcode::cmp_swap) == 0x11);
    CHECK(static_cast<int>(Opcode::fetch_add) == 0x12);
    CHECK(static_cast<int>(Status::local_length_error) == 0x01);
    CHECK(static_cast<int>(Status::flushed) == 0x05);
    CHECK(static_cast<int>(Status::remote_access_error) == 0x13);
    CHECK(static_cast<int>(Status::retry_exceeded) == 0x15);
    CHECK(static_cast<int>(Status::rnr_retry_exceeded) == 0x16);
    CHECK(static_cast<int>(Status::remote_aborted) == 0x22);
  }

  TEST_CASE("every status has a name of its own and a likely cause, success aside") {
    std::set<std::string_view> names;
    std::set<std::string_view> causes;
    const Status statuses[] = {Status::local_length_error,
                               Status::local_qp_operation_error,
                               Status::local_protection_error,
                               Status::flushed,
                               Status::memory_window_bind_error,
                               Status::bad_response,
                               Status::local_access_error,
                               Status::remote_invalid_request,
                               Status::remote_access_error,
                               Status::remote_operation_error,
                               Status::retry_exceeded,
                               Status::rnr_retry_exceeded,
                               Status::remote_aborted};
    for (const Status status : statuses) {
      CHECK(name(status) != "unknown status");
      CHECK(names.insert(name(status)).second);
      CHECK(causes.insert(likely_cause(status)).second);
      CHECK(likely_cause(status).size() > 10);
      CHECK(likely_cause(status).back() != '.');
    }
    CHECK(name(Status::success) == "success");
    CHECK(likely_cause(Status::success).empty());
  }

  TEST_CASE("numbers that no one has named are told as such") {
    CHECK(name(static_cast<Status>(0x77)) == "unknown status");
    CHECK(name(static_cast<Opcode>(0x77)) == "unknown opcode");
    CHECK(likely_cause(static_cast<Status>(0x77)) == "the device reported a syndrome that has no name");
  }

  TEST_CASE("every opcode has a name, and receives are told from sends") {
    const Opcode sends[] = {
        Opcode::nop,  Opcode::send_with_inv, Opcode::write,    Opcode::write_with_imm, Opcode::send,
        Opcode::read, Opcode::send_with_imm, Opcode::cmp_swap, Opcode::fetch_add};
    const Opcode receives[] = {Opcode::recv, Opcode::recv_with_imm, Opcode::recv_with_inv,
                               Opcode::recv_write_with_imm, Opcode::recv_error};
    for (const Opcode op : sends) {
      CHECK_FALSE(is_receive(op));
      CHECK(name(op) != "unknown opcode");
    }
    for (const Opcode op : receives) {
      CHECK(is_receive(op));
      CHECK(name(op).starts_with("RECV"));
    }
  }

  TEST_CASE("a completion describes itself in a sentence with its numbers and the cause") {
    Completion completion{};
    completion.wr_id = 0x2a;
    completion.qpn = 18;
    completion.opcode = Opcode::write;
    completion.status = Status::remote_access_error;
    completion.vendor_syndrome = 0x88;
    const std::string text = describe(completion);
    for (const char* part : {"WRITE", "0x2a", "QP 18", "remote access error", "0x13", "0x88", "rkey"})
      CHECK_MESSAGE(text.find(part) != std::string::npos, text << " lacks " << part);
    completion.status = Status::success;
    CHECK(describe(completion) == "WRITE of wr_id 0x2a on QP 18 succeeded");
  }
}
