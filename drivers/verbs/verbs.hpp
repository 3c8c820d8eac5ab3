// Every RDMA device that libibverbs drives, as a driver: rxe, bnxt_re, irdma, efa's UD and others.
// The rings are ordinary memory in mlx5's format; a translator reads WQEs out of them, calls
// ibv_post_send and ibv_post_recv, and writes what ibv_poll_cq returns as CQEs.
//
// iWARP devices (siw, cxgb4) are refused: their QPs connect through rdma_cm only, which
// driver::Qp has no call for.
#pragma once

#include <memory>

#include "pollen/drivers/driver.hpp"

namespace pollen::verbs {

std::unique_ptr<driver::Driver> make_driver();

}  // namespace pollen::verbs
