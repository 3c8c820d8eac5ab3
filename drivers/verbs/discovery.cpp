#include "pollen/drivers/verbs/discovery.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace pollen::verbs {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// "uverbs0"; empty: the device has none.
std::string uverbs_of(const std::string& device, const fs::path& root) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root / "sys/class/infiniband_verbs", none))
    if (first_line(entry.path() / "ibdev") == device) return entry.path().filename();
  return {};
}

}  // namespace

Error not_opened(const std::string& device, int errnum, const std::string& root) {
  const std::string attempted = fmt::format("open device {}", device);
  const std::string uverbs = uverbs_of(device, root);
  if (uverbs.empty())
    return Error(errnum, {.attempted = attempted,
                          .why = "the device has just gone",
                          .remedy = "Look at what there is: rdma link"});
  const std::string node = fmt::format("/dev/infiniband/{}", uverbs);
  std::error_code ignored;
  if (!fs::exists(fs::path(root) / node.substr(1), ignored))
    return Error(ENOENT, {.attempted = attempted,
                          .why = fmt::format("the device is there, but its node {} is not", node),
                          .remedy = fmt::format("In a container pass it in (docker run --device={} "
                                                "--cap-add=IPC_LOCK); on a host start udev",
                                                node)});
  if (errnum == EACCES || errnum == EPERM)
    return Error(errnum, {.attempted = attempted,
                          .why = fmt::format("this user may not open {}", node),
                          .remedy = fmt::format("Grant it: chmod a+rw {}, or a udev rule", node)});
  return Error(errnum, {.attempted = attempted, .on = node});
}

std::string description_of(const std::string& device, bool iwarp, const std::string& root) {
  const fs::path home = fs::path(root) / "sys/class/infiniband" / device;
  std::error_code ignored;
  const fs::path kernel_driver = fs::read_symlink(home / "device/driver", ignored).filename();
  if (kernel_driver.empty())
    return fmt::format("{} in the kernel's software, not a NIC; through libibverbs",
                       iwarp ? "iWARP" : "RoCE");
  return fmt::format("{}, through libibverbs", kernel_driver.string());
}

std::string network_interface(const std::string& device, std::uint32_t port, const std::string& root) {
  return first_line(fs::path(root) / "sys/class/infiniband" / device / "ports" / std::to_string(port) /
                    "gid_attrs/ndevs/0");
}

}  // namespace pollen::verbs
