#include "pollen/drivers/verbs/verbs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>

#include "pollen/base/error.hpp"
#include "pollen/drivers/verbs/device.hpp"
#include "pollen/drivers/verbs/discovery.hpp"

namespace pollen::verbs {

namespace {

bool is_iwarp(const FoundDevice& found) noexcept {
  return found.device->transport_type == IBV_TRANSPORT_IWARP;
}

driver::DeviceInfo describe(const FoundDevice& found) {
  return {found.name, "verbs", description_of(found.name, is_iwarp(found)), found.numa_node};
}

// Empty: the first that can be used.
const FoundDevice& choose(const std::vector<FoundDevice>& devices, const std::string& wanted) {
  const auto fits = [&](const FoundDevice& found) {
    return wanted.empty() ? !is_iwarp(found) : found.name == wanted;
  };
  const auto found = std::ranges::find_if(devices, fits);
  if (found != devices.end()) return *found;
  if (wanted.empty()) return devices.front();
  std::vector<std::string> names;
  for (const FoundDevice& device : devices) names.push_back(device.name);
  throw Error(ENODEV, {.attempted = fmt::format("open device {}", wanted),
                       .why = fmt::format("the RDMA devices here are {}", fmt::join(names, ", ")),
                       .remedy = "Name one of them, or none"});
}

class VerbsDriver final : public driver::Driver {
 public:
  std::string_view name() const noexcept override { return "verbs"; }

  std::vector<driver::DeviceInfo> devices() override {
    const DeviceList list;
    std::vector<driver::DeviceInfo> out;
    for (const FoundDevice& found : list.devices())
      if (!is_iwarp(found)) out.push_back(describe(found));
    return out;
  }

  std::unique_ptr<driver::Device> open(const std::string& wanted) override {
    const DeviceList list;
    if (list.devices().empty()) {
      const NoDevice none = why_no_device();
      throw Error(ENODEV, {.attempted =
                               wanted.empty() ? "open an RDMA device" : fmt::format("open device {}", wanted),
                           .why = none.why,
                           .remedy = none.remedy});
    }
    const FoundDevice& chosen = choose(list.devices(), wanted);
    if (is_iwarp(chosen))
      throw Error(EOPNOTSUPP,
                  {.attempted = fmt::format("use device {}", chosen.name),
                   .why = "it is an iWARP device, whose queue pairs connect through rdma_cm only",
                   .remedy = "Use a RoCE or InfiniBand device, or the software NIC (--driver soft)"});
    ibv_context* const context = ibv_open_device(chosen.device);
    if (context == nullptr) throw not_opened(chosen.name, errno);
    return std::make_unique<VerbsDevice>(context, describe(chosen));
  }
};

}  // namespace

std::unique_ptr<driver::Driver> make_driver() { return std::make_unique<VerbsDriver>(); }

}  // namespace pollen::verbs
