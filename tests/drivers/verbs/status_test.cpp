#include "pollen/drivers/verbs/status.hpp"

#include <doctest/doctest.h>

using namespace pollen;
using queue::Status;

TEST_SUITE("verbs.status") {
  TEST_CASE("every syndrome has its libibverbs status, and back") {
    for (const Status status :
         {Status::success, Status::local_length_error, Status::local_qp_operation_error,
          Status::local_protection_error, Status::flushed, Status::memory_window_bind_error,
          Status::bad_response, Status::local_access_error, Status::remote_invalid_request,
          Status::remote_access_error, Status::remote_operation_error, Status::retry_exceeded,
          Status::rnr_retry_exceeded, Status::remote_aborted}) {
      CAPTURE(name(status));
      CHECK(verbs::to_wc_status(status) != IBV_WC_GENERAL_ERR);
      CHECK(verbs::to_syndrome(verbs::to_wc_status(status)) == status);
    }
  }

  TEST_CASE("a status that mlx5 does not have is still an error") {
    for (int raw = IBV_WC_SUCCESS + 1; raw <= IBV_WC_TM_RNDV_INCOMPLETE; ++raw)
      CHECK(verbs::to_syndrome(static_cast<ibv_wc_status>(raw)) != Status::success);
  }
}
