// Completion statuses: those of libibverbs and the syndromes of mlx5's CQEs, in both directions.
#pragma once

#include <infiniband/verbs.h>

#include "pollen/queue/completion.hpp"

namespace pollen::verbs {

constexpr queue::Status to_syndrome(ibv_wc_status status) noexcept {
  using queue::Status;
  switch (status) {
    case IBV_WC_SUCCESS:
      return Status::success;
    case IBV_WC_LOC_LEN_ERR:
      return Status::local_length_error;
    case IBV_WC_LOC_QP_OP_ERR:
      return Status::local_qp_operation_error;
    case IBV_WC_LOC_PROT_ERR:
      return Status::local_protection_error;
    case IBV_WC_WR_FLUSH_ERR:
      return Status::flushed;
    case IBV_WC_MW_BIND_ERR:
      return Status::memory_window_bind_error;
    case IBV_WC_BAD_RESP_ERR:
      return Status::bad_response;
    case IBV_WC_LOC_ACCESS_ERR:
      return Status::local_access_error;
    case IBV_WC_REM_INV_REQ_ERR:
      return Status::remote_invalid_request;
    case IBV_WC_REM_ACCESS_ERR:
      return Status::remote_access_error;
    case IBV_WC_REM_OP_ERR:
      return Status::remote_operation_error;
    case IBV_WC_RETRY_EXC_ERR:
      return Status::retry_exceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return Status::rnr_retry_exceeded;
    case IBV_WC_REM_ABORT_ERR:
      return Status::remote_aborted;
    // mlx5 has no syndrome for these: the nearest in meaning.
    case IBV_WC_RESP_TIMEOUT_ERR:
      return Status::retry_exceeded;
    case IBV_WC_REM_INV_RD_REQ_ERR:
      return Status::remote_invalid_request;
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_RDD_VIOL_ERR:
    case IBV_WC_INV_EECN_ERR:
    case IBV_WC_INV_EEC_STATE_ERR:
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR:
    case IBV_WC_TM_ERR:
    case IBV_WC_TM_RNDV_INCOMPLETE:
      return Status::local_qp_operation_error;
  }
  return Status::local_qp_operation_error;
}

// As libmlx5 reads a CQE.
constexpr ibv_wc_status to_wc_status(queue::Status syndrome) noexcept {
  using queue::Status;
  switch (syndrome) {
    case Status::success:
      return IBV_WC_SUCCESS;
    case Status::local_length_error:
      return IBV_WC_LOC_LEN_ERR;
    case Status::local_qp_operation_error:
      return IBV_WC_LOC_QP_OP_ERR;
    case Status::local_protection_error:
      return IBV_WC_LOC_PROT_ERR;
    case Status::flushed:
      return IBV_WC_WR_FLUSH_ERR;
    case Status::memory_window_bind_error:
      return IBV_WC_MW_BIND_ERR;
    case Status::bad_response:
      return IBV_WC_BAD_RESP_ERR;
    case Status::local_access_error:
      return IBV_WC_LOC_ACCESS_ERR;
    case Status::remote_invalid_request:
      return IBV_WC_REM_INV_REQ_ERR;
    case Status::remote_access_error:
      return IBV_WC_REM_ACCESS_ERR;
    case Status::remote_operation_error:
      return IBV_WC_REM_OP_ERR;
    case Status::retry_exceeded:
      return IBV_WC_RETRY_EXC_ERR;
    case Status::rnr_retry_exceeded:
      return IBV_WC_RNR_RETRY_EXC_ERR;
    case Status::remote_aborted:
      return IBV_WC_REM_ABORT_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

}  // namespace pollen::verbs
