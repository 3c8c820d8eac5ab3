#include "pollen/drivers/registry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>

#include "pollen/base/error.hpp"
#ifdef POLLEN_MLX5
#include "pollen/drivers/mlx5/mlx5.hpp"
#endif
#ifdef POLLEN_SOFT
#include "pollen/drivers/soft/soft.hpp"
#endif
#ifdef POLLEN_VERBS
#include "pollen/drivers/verbs/verbs.hpp"
#endif

namespace pollen::driver {

namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Driver> (*make)(const DriverOptions& options);
};

#ifdef POLLEN_SOFT
std::unique_ptr<Driver> make_soft(const DriverOptions& options) {
  soft::SoftOptions soft;
  soft.wire = options.soft_in_process ? soft::Wire::in_process : soft::Wire::shared_memory;
  if (!options.soft_faults.empty()) soft.faults = soft::parse_faults(options.soft_faults);
  soft.pcap_path = options.soft_pcap;
  soft.copy_payloads = options.soft_copy;
  return soft::make_driver(soft);
}
#endif

// The best comes first: a real NIC before a software one.
std::vector<Entry> entries() {
  std::vector<Entry> all;
#ifdef POLLEN_MLX5
  all.push_back({"mlx5", [](const DriverOptions&) { return mlx5::make_driver(); }});
#endif
#ifdef POLLEN_VERBS
  all.push_back({"verbs", [](const DriverOptions&) { return verbs::make_driver(); }});
#endif
#ifdef POLLEN_SOFT
  all.push_back({"soft", &make_soft});
#endif
  return all;
}

bool has_device(Driver& driver, const std::string& device) {
  const auto devices = driver.devices();
  if (device.empty()) return !devices.empty();
  return std::ranges::any_of(devices, [&](const DeviceInfo& info) { return info.name == device; });
}

[[noreturn]] void refuse(std::string attempted, std::string why, std::string remedy) {
  throw Error(ENODEV,
              {.attempted = std::move(attempted), .why = std::move(why), .remedy = std::move(remedy)});
}

OpenedDevice opened(std::unique_ptr<Driver> driver, const std::string& device, std::string why) {
  OpenedDevice out{.driver = std::move(driver), .device = nullptr, .why = std::move(why)};
  out.device = out.driver->open(device);
  return out;
}

}  // namespace

std::vector<std::string_view> built_in_drivers() {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries()) names.push_back(entry.name);
  return names;
}

OpenedDevice open_device(std::string_view driver, const std::string& device, const DriverOptions& options) {
  const auto all = entries();
  const std::string names = fmt::format("{}", fmt::join(built_in_drivers(), ", "));
  if (driver != "auto") {
    const auto entry = std::ranges::find(all, driver, &Entry::name);
    if (entry == all.end())
      refuse(fmt::format("use driver {}", driver), "this build does not have it",
             fmt::format("Use auto or one of: {}", names));
    return opened(entry->make(options), device, fmt::format("{}: as asked for", driver));
  }
  std::vector<std::string_view> without;
  std::string known;
  for (const Entry& entry : all) {
    auto candidate = entry.make(options);
    if (!has_device(*candidate, device)) {
      without.push_back(entry.name);
      for (const DeviceInfo& info : candidate->devices()) known += (known.empty() ? "" : ", ") + info.name;
      continue;
    }
    const std::string because = !without.empty()  ? fmt::format("{} found no {}", fmt::join(without, ", "),
                                                               device.empty() ? "device" : device)
                                : all.size() == 1 ? "the only driver in this build"
                                                  : "the first driver that has a device";
    return opened(std::move(candidate), device, fmt::format("{}: {}", entry.name, because));
  }
  refuse(device.empty() ? "choose a device" : fmt::format("open device {}", device),
         known.empty() ? "no driver found a device" : fmt::format("no driver has it; there are {}", known),
         fmt::format("Name one of these with -d, or none; the drivers in this build are {}", names));
}

}  // namespace pollen::driver
