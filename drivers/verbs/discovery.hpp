// What the machine's file systems say of one RDMA device: why it does not open, what it is, which
// network interface is behind it. `root` is where /sys and /dev are, for tests.
#pragma once

#include <cstdint>
#include <string>

#include "pollen/base/error.hpp"

namespace pollen::verbs {

// For a device that is listed and does not open; errnum is what ibv_open_device left.
Error not_opened(const std::string& device, int errnum, const std::string& root = "/");

// A label for reports.
std::string description_of(const std::string& device, bool iwarp, const std::string& root = "/");

// Empty: none, as on InfiniBand.
std::string network_interface(const std::string& device, std::uint32_t port, const std::string& root = "/");

}  // namespace pollen::verbs
