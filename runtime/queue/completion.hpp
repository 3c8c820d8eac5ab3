// What a poll of a completion queue hands out, and the words for its status.
//
// A completion stands for `wr_count` work requests: the queue signals only some of its WQEs,
// and each CQE retires all earlier ones with it. The status belongs to the last of them; the
// earlier ones succeeded. `wr_id` is that of the last one and is valid on errors too.
#pragma once

#include <infiniband/mlx5dv.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace pollen::queue {

enum class Opcode : std::uint8_t {
  nop = MLX5_OPCODE_NOP,  // also the queue's own NOP, which retires WRs that nothing else would
  send_with_inv = MLX5_OPCODE_SEND_INVAL,
  write = MLX5_OPCODE_RDMA_WRITE,
  write_with_imm = MLX5_OPCODE_RDMA_WRITE_IMM,
  send = MLX5_OPCODE_SEND,
  send_with_imm = MLX5_OPCODE_SEND_IMM,
  read = MLX5_OPCODE_RDMA_READ,
  cmp_swap = MLX5_OPCODE_ATOMIC_CS,
  fetch_add = MLX5_OPCODE_ATOMIC_FA,
  // Receive side. 0x80 marks the direction, which is known from the queue and not from the
  // CQE's opcode: on an error the CQE does not say what was received.
  recv_write_with_imm = 0x80 | MLX5_CQE_RESP_WR_IMM,
  recv = 0x80 | MLX5_CQE_RESP_SEND,
  recv_with_imm = 0x80 | MLX5_CQE_RESP_SEND_IMM,
  recv_with_inv = 0x80 | MLX5_CQE_RESP_SEND_INV,
  recv_error = 0x80 | MLX5_CQE_RESP_ERR,
};

constexpr bool is_receive(Opcode op) noexcept { return (static_cast<std::uint8_t>(op) & 0x80) != 0; }

// The CQE's syndrome.
enum class Status : std::uint8_t {
  success = 0,
  local_length_error = MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR,
  local_qp_operation_error = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR,
  local_protection_error = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR,
  flushed = MLX5_CQE_SYNDROME_WR_FLUSH_ERR,
  memory_window_bind_error = MLX5_CQE_SYNDROME_MW_BIND_ERR,
  bad_response = MLX5_CQE_SYNDROME_BAD_RESP_ERR,
  local_access_error = MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR,
  remote_invalid_request = MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR,
  remote_access_error = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR,
  remote_operation_error = MLX5_CQE_SYNDROME_REMOTE_OP_ERR,
  retry_exceeded = MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR,
  rnr_retry_exceeded = MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR,
  remote_aborted = MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR,
};

struct Completion {
  std::uint64_t wr_id;
  std::uint32_t byte_len;  // receives, READ and atomics; 0 for other sends
  std::uint32_t imm;       // host order; the invalidated rkey for recv_with_inv
  std::uint32_t qpn;       // the local QP
  std::uint32_t src_qpn;   // UD receives: the sender's QP
  std::uint16_t wr_count;  // WRs retired, at least 1
  Status status;
  Opcode opcode;
  std::uint8_t vendor_syndrome;  // 0 unless status is an error
  bool grh_present;              // UD receives: the first 40 bytes are the GRH
  bool solicited;                // receives: the sender asked for an event

  bool ok() const noexcept { return status == Status::success; }
  bool has_imm() const noexcept {
    return opcode == Opcode::recv_with_imm || opcode == Opcode::recv_write_with_imm;
  }
};

std::string_view name(Opcode op) noexcept;
std::string_view name(Status status) noexcept;

// The likely cause, a sentence without its full stop: "the peer does not answer: …".
std::string_view likely_cause(Status status) noexcept;

// "SEND of wr_id 7 on QP 18 failed: flushed (vendor 0x00): an earlier request failed …".
std::string describe(const Completion& completion);

}  // namespace pollen::queue
