#include "pollen/drivers/soft/soft.hpp"

#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cerrno>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/engine.hpp"

namespace pollen::soft {

namespace {

constexpr driver::Limits soft_limits{
    .max_qps = qps_per_engine - 2,
    .max_send_wrs = queue::max_send_blocks,
    .max_recv_wrs = 32768,
    .max_sge = 30,
    .max_inline_bytes = 828,  // 63 segments at most in a WQE, less the longest head
    .max_cqs = 1 << 16,
    .max_cq_entries = 1 << 22,
    .max_region_bytes = std::uint64_t{1} << 46,
    .max_message_bytes = 1U << 30,
    .max_reads_out = 16,
    .max_reads_in = 16,
};

[[noreturn]] void refuse(const char* what, std::uint64_t asked, std::uint64_t most,
                         const std::string& device) {
  throw Error(EINVAL, {.attempted = fmt::format("create {} of {}", what, asked),
                       .on = device,
                       .why = fmt::format("the device allows 1 to {}", most),
                       .remedy = "Ask for a number in that range"});
}

class SoftRegion final : public driver::Region {
 public:
  SoftRegion(RegionTable& regions, std::uint32_t pd, std::span<std::byte> memory, driver::Access access,
             driver::SharedBacking backing)
      : regions_(regions) {
    address_ = memory.data();
    bytes_ = memory.size();
    lkey_ = rkey_ = regions.add(pd, memory, access, backing);
  }
  ~SoftRegion() override { regions_.end(lkey_); }

 private:
  RegionTable& regions_;
};

class SoftPd final : public driver::Pd {
 public:
  SoftPd(RegionTable& regions, std::uint32_t number) : regions_(regions), number_(number) {}

  std::unique_ptr<driver::Region> register_memory(std::span<std::byte> memory, driver::Access access,
                                                  driver::SharedBacking backing) override {
    if (memory.empty())
      throw Error(
          EINVAL,
          {.attempted = "register memory", .why = "it is empty", .remedy = "Register a byte or more"});
    const bool remote_change = driver::allows(access, driver::Access::remote_write) ||
                               driver::allows(access, driver::Access::remote_atomic);
    if (remote_change && !driver::allows(access, driver::Access::local_write))
      throw Error(EINVAL, {.attempted = "register memory",
                           .why = "remote write and remote atomic access need local write access, too",
                           .remedy = "Add Access::local_write"});
    return std::make_unique<SoftRegion>(regions_, number_, memory, access, backing);
  }
  std::uint32_t number() const noexcept { return number_; }

 private:
  RegionTable& regions_;
  std::uint32_t number_;
};

class SoftPort final : public driver::Port {
 public:
  SoftPort(std::string device, Directory& directory, RegionTable& regions, std::unique_ptr<Tap> tap,
           bool copy_payloads)
      : device_(std::move(device)), engine_(directory, regions, std::move(tap), copy_payloads) {}

  std::unique_ptr<driver::Cq> create_cq(std::uint32_t entries) override {
    if (entries == 0 || entries > soft_limits.max_cq_entries)
      refuse("a completion queue", entries, soft_limits.max_cq_entries, device_);
    return std::make_unique<SoftCq>(std::bit_ceil(entries));
  }

  std::unique_ptr<driver::Qp> create_qp(driver::Pd& pd, driver::Cq& send_cq, driver::Cq& recv_cq,
                                        const driver::QpConfig& config) override {
    if (config.transport == driver::Transport::uc)
      throw Error(EOPNOTSUPP, {.attempted = "create a UC QP",
                               .on = device_,
                               .why = "the software NIC has RC and UD",
                               .remedy = "Use RC"});
    if (config.send_wrs == 0 || config.send_wrs > soft_limits.max_send_wrs)
      refuse("a send queue", config.send_wrs, soft_limits.max_send_wrs, device_);
    if (config.recv_wrs > soft_limits.max_recv_wrs)
      refuse("a receive queue", config.recv_wrs, soft_limits.max_recv_wrs, device_);
    if (config.send_sge > soft_limits.max_sge || config.recv_sge > soft_limits.max_sge)
      refuse("a gather list", std::max(config.send_sge, config.recv_sge), soft_limits.max_sge, device_);
    if (config.inline_bytes > soft_limits.max_inline_bytes)
      refuse("inline data", config.inline_bytes, soft_limits.max_inline_bytes, device_);
    return std::make_unique<SoftQp>(engine_, static_cast<SoftPd&>(pd).number(), static_cast<SoftCq&>(send_cq),
                                    static_cast<SoftCq&>(recv_cq), config);
  }

  queue::Address create_address(driver::Pd&, const driver::PathConfig& path, std::uint32_t qpn,
                                std::uint32_t qkey) override {
    queue::Address address{};
    auto& av = address.segment.av;
    av.key.qkey.qkey = big_endian(qkey);
    av.dqp_dct = big_endian(qpn | 1U << 31);  // the extended address vector, as all of mlx5's
    av.hop_limit = path.hop_limit;
    av.tclass = path.traffic_class;
    av.stat_rate_sl = path.service_level;
    av.grh_gid_fl = big_endian(1U << 30 | path.local_gid_index << 20);
    std::memcpy(av.rgid, path.remote_gid.bytes.data(), sizeof av.rgid);
    return address;
  }

  driver::Progress progress() noexcept override {
    return {[](void* engine) noexcept { return static_cast<Engine*>(engine)->progress(); }, &engine_};
  }
  std::optional<driver::Event> next_event() override { return engine_.next_event(); }
  int wake_fd() const noexcept override { return engine_.wake_fd(); }
  bool arm() noexcept override { return engine_.arm(); }
  void disarm() noexcept override { engine_.disarm(); }

 private:
  std::string device_;
  Engine engine_;
};

class SoftDevice final : public driver::Device {
 public:
  SoftDevice(driver::DeviceInfo info, std::uint32_t number, const SoftOptions& options)
      : info_(std::move(info)), options_(options), directory_(number, options) {
    if (!options.pcap_path.empty()) capture_ = std::make_shared<PcapWriter>(options.pcap_path);
  }

  const driver::DeviceInfo& info() const noexcept override { return info_; }
  const driver::Limits& limits() const noexcept override { return soft_limits; }

  driver::PortInfo query_port(std::uint32_t port) const override {
    require_port(port);
    driver::PortInfo out;
    out.active = true;
    out.mtu_bytes = max_mtu_bytes;
    for (std::uint32_t index = 0; index < 2; ++index)
      out.gids.push_back({index, device_gid(directory_.device(), index), driver::GidType::roce_v2});
    return out;
  }

  std::unique_ptr<driver::Pd> create_pd() override { return std::make_unique<SoftPd>(regions_, ++pds_); }

  std::unique_ptr<driver::Port> open_port(std::uint32_t port) override {
    require_port(port);
    return std::make_unique<SoftPort>(info_.name, directory_, regions_,
                                      std::make_unique<Tap>(options_.faults, capture_),
                                      options_.copy_payloads);
  }

 private:
  void require_port(std::uint32_t port) const {
    if (port == 1) return;
    throw Error(EINVAL, {.attempted = fmt::format("use port {}", port),
                         .on = info_.name,
                         .why = "it has one port",
                         .remedy = "Use port 1"});
  }

  driver::DeviceInfo info_;
  SoftOptions options_;
  Directory directory_;
  RegionTable regions_;
  std::shared_ptr<PcapWriter> capture_;
  std::atomic<std::uint32_t> pds_{0};
};

class SoftDriver final : public driver::Driver {
 public:
  explicit SoftDriver(const SoftOptions& options) : options_(options) {}

  std::string_view name() const noexcept override { return "soft"; }

  std::vector<driver::DeviceInfo> devices() override {
    std::vector<driver::DeviceInfo> out;
    for (std::uint32_t i = 0; i < max_devices; ++i) {
      std::string description = "software NIC in this process, not a real one";
      if (options_.faults.any()) description += fmt::format("; faults {}", to_string(options_.faults));
      if (options_.copy_payloads) description += "; payloads copied";
      out.push_back({fmt::format("soft{}", i), "soft", std::move(description), -1});
    }
    return out;
  }

  std::unique_ptr<driver::Device> open(const std::string& device) override {
    auto all = devices();
    for (std::uint32_t i = 0; i < max_devices; ++i)
      if (device.empty() || all[i].name == device)
        return std::make_unique<SoftDevice>(std::move(all[i]), i, options_);
    throw Error(ENODEV, {.attempted = fmt::format("open device {}", device),
                         .why = "the software NIC has soft0 to soft7",
                         .remedy = "Name one of them, or none for soft0"});
  }

 private:
  SoftOptions options_;
};

}  // namespace

std::unique_ptr<driver::Driver> make_driver(const SoftOptions& options) {
  return std::make_unique<SoftDriver>(options);
}

}  // namespace pollen::soft
