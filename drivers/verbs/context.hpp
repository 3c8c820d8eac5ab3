// What every driver over libibverbs needs, mlx5 and verbs alike: devices found and opened, and their
// limits, ports, events and errors in Pollen's terms. Control path only.
//
// Ownership: a Context closes its device. Thread rules: as driver::Device. Errors: Error, with the
// device's name and what to do.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pollen/drivers/driver.hpp"

namespace pollen::verbs {

struct FoundDevice {
  ibv_device* device;  // good while its DeviceList lives
  std::string name;
  int numa_node;
};

// The RDMA devices of this host, as libibverbs sees them.
class DeviceList {
 public:
  // An empty list is no error; why_no_device() says what is missing.
  DeviceList();
  ~DeviceList();
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  const std::vector<FoundDevice>& devices() const noexcept { return devices_; }

 private:
  ibv_device** list_ = nullptr;
  std::vector<FoundDevice> devices_;
};

// Why there is no device to open, and the way out. `root`: where /sys and /dev are, for tests.
struct NoDevice {
  std::string why;
  std::string remedy;
};
NoDevice why_no_device(const std::string& root = "/");

class Context {
 public:
  explicit Context(ibv_context* context, std::string name);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ibv_context* get() const noexcept { return context_; }
  const std::string& name() const noexcept { return name_; }
  const driver::Limits& limits() const noexcept { return limits_; }

  driver::PortInfo query_port(std::uint32_t port) const;

  // Never waits.
  std::optional<driver::Event> next_event() const;

  // An Error for a call that failed with `errnum`: "cannot create a QP (inline 220) on mlx5_0: …". ENOMEM
  // is looked into: the memlock limit is named only when it can be the cause.
  [[noreturn]] void fail(int errnum, std::string attempted, std::string remedy = {}) const;

 private:
  ibv_context* context_;
  std::string name_;
  driver::Limits limits_;
};

// Events are looked at between turns and never waited for.
void make_nonblocking(int fd) noexcept;

int to_ibv_access(driver::Access access) noexcept;
ibv_mtu to_ibv_mtu(std::uint32_t bytes) noexcept;
std::uint32_t mtu_bytes(ibv_mtu mtu) noexcept;
ibv_qp_type to_ibv_type(driver::Transport transport) noexcept;

// The address of a path; GRH where the link layer or the port's flags ask for it.
ibv_ah_attr to_ibv_path(const driver::PathConfig& path, std::uint32_t port, bool needs_grh) noexcept;

// The state machine of a QP by ibv_modify_qp. Each throws through context.fail.
void to_init(const Context& context, ibv_qp* qp, std::uint32_t port, const driver::InitConfig& config);
void to_rtr(const Context& context, ibv_qp* qp, std::uint32_t port, bool needs_grh,
            const driver::RtrConfig& config);
void to_rts(const Context& context, ibv_qp* qp, const driver::RtsConfig& config);
void to_state(const Context& context, ibv_qp* qp, ibv_qp_state state);
driver::QpState state_of(ibv_qp_state state) noexcept;

}  // namespace pollen::verbs
