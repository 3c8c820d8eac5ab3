#include "pollen/queue/completion.hpp"

#include <fmt/format.h>

namespace pollen::queue {

std::string_view name(Opcode op) noexcept {
  switch (op) {
    case Opcode::nop:
      return "NOP";
    case Opcode::send_with_inv:
      return "SEND_WITH_INV";
    case Opcode::write:
      return "WRITE";
    case Opcode::write_with_imm:
      return "WRITE_WITH_IMM";
    case Opcode::send:
      return "SEND";
    case Opcode::send_with_imm:
      return "SEND_WITH_IMM";
    case Opcode::read:
      return "READ";
    case Opcode::cmp_swap:
      return "CMP_SWAP";
    case Opcode::fetch_add:
      return "FETCH_ADD";
    case Opcode::recv_write_with_imm:
      return "RECV of WRITE_WITH_IMM";
    case Opcode::recv:
      return "RECV";
    case Opcode::recv_with_imm:
      return "RECV with immediate";
    case Opcode::recv_with_inv:
      return "RECV with invalidate";
    case Opcode::recv_error:
      return "RECV";
  }
  return "unknown opcode";
}

std::string_view name(Status status) noexcept {
  switch (status) {
    case Status::success:
      return "success";
    case Status::local_length_error:
      return "local length error";
    case Status::local_qp_operation_error:
      return "local QP operation error";
    case Status::local_protection_error:
      return "local protection error";
    case Status::flushed:
      return "flushed";
    case Status::memory_window_bind_error:
      return "memory window bind error";
    case Status::bad_response:
      return "bad response";
    case Status::local_access_error:
      return "local access error";
    case Status::remote_invalid_request:
      return "remote invalid request";
    case Status::remote_access_error:
      return "remote access error";
    case Status::remote_operation_error:
      return "remote operation error";
    case Status::retry_exceeded:
      return "transport retry count exceeded";
    case Status::rnr_retry_exceeded:
      return "RNR retry count exceeded";
    case Status::remote_aborted:
      return "remote aborted";
  }
  return "unknown status";
}

std::string_view likely_cause(Status status) noexcept {
  switch (status) {
    case Status::success:
      return "";
    case Status::local_length_error:
      return "a received message is longer than the posted buffer, or a sent one is longer than the "
             "transport allows (UD: the MTU)";
    case Status::local_qp_operation_error:
      return "the WQE is malformed or the QP does not support the operation";
    case Status::local_protection_error:
      return "a local buffer is not inside the region of its lkey, the region is of another protection "
             "domain, or it lacks local write access";
    case Status::flushed:
      return "the QP is in the error state: an earlier request failed, the QP was closed or the peer left";
    case Status::memory_window_bind_error:
      return "the memory window could not be bound";
    case Status::bad_response:
      return "the peer answered with a packet that does not fit the request";
    case Status::local_access_error:
      return "a response could not be written to the local buffer";
    case Status::remote_invalid_request:
      return "the peer refused the request: the message is longer than its receive buffer, or the "
             "operation or the read depth is not enabled on its QP";
    case Status::remote_access_error:
      return "the rkey is wrong or gone, the range is outside its region, or the region or the peer's QP "
             "does not "
             "grant this access";
    case Status::remote_operation_error:
      return "the peer could not carry the request out: its own receive buffer failed, or it ran out of "
             "resources";
    case Status::retry_exceeded:
      return "the peer does not answer: it ended, its QP is not connected to this one, or packets are lost";
    case Status::rnr_retry_exceeded:
      return "the peer had no receive buffer posted for too long";
    case Status::remote_aborted:
      return "the peer aborted the operation";
  }
  return "the device reported a syndrome that has no name";
}

std::string describe(const Completion& completion) {
  if (completion.ok())
    return fmt::format("{} of wr_id {:#x} on QP {} succeeded", name(completion.opcode), completion.wr_id,
                       completion.qpn);
  return fmt::format("{} of wr_id {:#x} on QP {} failed: {} (syndrome {:#04x}, vendor {:#04x}): {}",
                     name(completion.opcode), completion.wr_id, completion.qpn, name(completion.status),
                     static_cast<unsigned>(completion.status), completion.vendor_syndrome,
                     likely_cause(completion.status));
}

}  // namespace pollen::queue
