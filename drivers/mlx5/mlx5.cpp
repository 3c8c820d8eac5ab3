#include "pollen/drivers/mlx5/mlx5.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>

#include "pollen/base/bytes.hpp"
#include "pollen/base/error.hpp"
#include "pollen/drivers/mlx5/port.hpp"
#include "pollen/drivers/verbs/context.hpp"

namespace pollen::mlx5 {

namespace {

class Device final : public driver::Device {
 public:
  Device(driver::DeviceInfo info, ibv_context* context)
      : info_(std::move(info)), context_(context, info_.name) {}

  const driver::DeviceInfo& info() const noexcept override { return info_; }
  const driver::Limits& limits() const noexcept override { return context_.limits(); }
  driver::PortInfo query_port(std::uint32_t port) const override { return context_.query_port(port); }
  std::unique_ptr<driver::Pd> create_pd() override { return std::make_unique<Pd>(context_); }
  std::unique_ptr<driver::Port> open_port(std::uint32_t port) override {
    return std::make_unique<Port>(context_, port);
  }

 private:
  driver::DeviceInfo info_;
  verbs::Context context_;
};

class Driver final : public driver::Driver {
 public:
  std::string_view name() const noexcept override { return "mlx5"; }

  std::vector<driver::DeviceInfo> devices() override {
    const verbs::DeviceList list;
    std::vector<driver::DeviceInfo> out;
    for (const verbs::FoundDevice& found : list.devices())
      if (mlx5dv_is_supported(found.device)) out.push_back(describe(found));
    return out;
  }

  std::unique_ptr<driver::Device> open(const std::string& device) override {
    const verbs::DeviceList list;
    std::vector<std::string> names;
    for (const verbs::FoundDevice& found : list.devices()) {
      const bool ours = mlx5dv_is_supported(found.device);
      if (ours) names.push_back(found.name);
      if (!device.empty() && found.name != device) continue;
      if (!ours) {
        if (device.empty()) continue;
        throw Error(ENODEV, {.attempted = fmt::format("open {} with the mlx5 driver", device),
                             .why = "it is not an mlx5 device",
                             .remedy = "Use --driver verbs for it"});
      }
      mlx5dv_context_attr attr{};
      ibv_context* context = mlx5dv_open_device(found.device, &attr);
      if (context == nullptr)
        throw Error(
            errno,
            {.attempted = fmt::format("open {}", found.name),
             .remedy = "Check the rights of /dev/infiniband/uverbs*; in a container pass the node in"});
      return std::make_unique<Device>(describe(found), context);
    }
    if (list.devices().empty()) {
      const verbs::NoDevice none = verbs::why_no_device();
      throw Error(ENODEV, {.attempted = "open an mlx5 device", .why = none.why, .remedy = none.remedy});
    }
    throw Error(ENODEV,
                {.attempted = device.empty() ? "open an mlx5 device" : fmt::format("open {}", device),
                 .why = names.empty() ? "this host has RDMA devices, but none of mlx5"
                                      : fmt::format("the mlx5 devices here are {}", fmt::join(names, ", ")),
                 .remedy = names.empty() ? "Use --driver verbs" : "Name one of them"});
  }

 private:
  static driver::DeviceInfo describe(const verbs::FoundDevice& found) {
    // softmlx5's devices have GUIDs of their own: a report must not pass one off as a NIC.
    constexpr std::uint64_t softmlx5_guids = 0x02706cff'fe6e;
    const bool played =
        big_endian(static_cast<std::uint64_t>(ibv_get_device_guid(found.device))) >> 16 == softmlx5_guids;
    return {
        found.name, "mlx5",
        played ? "mlx5 device played by the software NIC, not a real one" : "mlx5 device, driven directly",
        found.numa_node};
  }
};

}  // namespace

std::unique_ptr<driver::Driver> make_driver() { return std::make_unique<Driver>(); }

}  // namespace pollen::mlx5
