// The software NIC as a driver: devices soft0 to soft7, which need no hardware, no kernel module
// and no privileges. All processes of a user share them; packets go through shared memory.
//
// It is not a NIC, and says so: DeviceInfo::description is for every report.
#pragma once

#include <memory>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/soft/options.hpp"

namespace pollen::soft {

std::unique_ptr<driver::Driver> make_driver(const SoftOptions& options = {});

}  // namespace pollen::soft
