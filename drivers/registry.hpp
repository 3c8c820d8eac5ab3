// The drivers that were built in, and the choice among them.
//
// Thread rules: control path; call from one thread. Errors: pollen::Error, ENODEV for a driver or a
// device that is not there.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pollen/drivers/driver.hpp"

namespace pollen::driver {

// What the drivers can be told, each by its own name.
struct DriverOptions {
  std::string soft_faults = {};  // see soft/faults.hpp
  std::string soft_pcap = {};    // file; empty: none
  bool soft_in_process = false;  // reach this process only
  bool soft_copy = false;        // payloads are copied, as between two hosts
};

// In the order in which "auto" tries them.
std::vector<std::string_view> built_in_drivers();

struct OpenedDevice {
  std::unique_ptr<Driver> driver;
  std::unique_ptr<Device> device;  // goes before its driver
  std::string why;                 // which driver, and why that one: "soft: the only driver in this build"
};

// driver: one of those above, or "auto": the first that has the device. device: empty for the first.
OpenedDevice open_device(std::string_view driver, const std::string& device,
                         const DriverOptions& options = {});

}  // namespace pollen::driver
