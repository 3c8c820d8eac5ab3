// The files under /sys that libibverbs and programs read about a device, as a directory of real
// files. Every process that shows the same device shares it; it is written once.
#pragma once

#include <cstdint>
#include <string>

namespace pollen::soft::uverbs {

// The directory that stands for /sys, made if need be; mlx5_0 in it is the software NIC's device
// `device`. Throws Error.
std::string make_sysfs_tree(std::uint32_t device);

}  // namespace pollen::soft::uverbs
