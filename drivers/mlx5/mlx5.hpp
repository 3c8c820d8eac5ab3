// The driver for NVIDIA's mlx5 NICs (ConnectX-4 and later, BlueField). Objects are made through
// libibverbs; their rings and registers are then taken over with mlx5dv, and the kernel and libmlx5
// see nothing of what is posted and polled.
//
// Each Port, that is each worker, has a thread domain of its own, and with it registers (a UAR) that
// no other thread writes: no lock, and no false sharing of write-combining buffers.
#pragma once

#include <memory>

#include "pollen/drivers/driver.hpp"

namespace pollen::mlx5 {

std::unique_ptr<driver::Driver> make_driver();

}  // namespace pollen::mlx5
