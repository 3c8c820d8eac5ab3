// An open device, and its asynchronous events, which it reads for all of its ports.
//
// Thread rules: as driver::Device. Events are read by whichever port's thread asks first.
#pragma once

#include <infiniband/verbs.h>

#include <mutex>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/verbs/context.hpp"
#include "pollen/drivers/verbs/handles.hpp"

namespace pollen::verbs {

class VerbsPort;

class VerbsDevice final : public driver::Device {
 public:
  // Takes the open device over.
  VerbsDevice(ibv_context* context, driver::DeviceInfo info);

  const driver::DeviceInfo& info() const noexcept override { return info_; }
  const driver::Limits& limits() const noexcept override { return limits_; }
  driver::PortInfo query_port(std::uint32_t port) const override;
  std::unique_ptr<driver::Pd> create_pd() override;
  std::unique_ptr<driver::Port> open_port(std::uint32_t port) override;

  const Context& context() const noexcept { return context_; }
  bool has_atomics() const noexcept { return has_atomics_; }

  void attach(VerbsPort& port);
  void detach(VerbsPort& port) noexcept;
  // Hands the events that are waiting to the ports they concern. Never waits.
  void distribute_events();

 private:
  driver::DeviceInfo info_;
  Context context_;
  driver::Limits limits_;
  std::uint32_t ports_there_are_ = 1;
  bool has_atomics_ = false;
  std::mutex mutex_;  // of ports_ and of reading events
  std::vector<VerbsPort*> ports_;
};

class VerbsPd final : public driver::Pd {
 public:
  VerbsPd(const VerbsDevice& device, PdHandle handle) : device_(device), handle_(std::move(handle)) {}

  std::unique_ptr<driver::Region> register_memory(std::span<std::byte> memory, driver::Access access,
                                                  driver::SharedBacking backing) override;
  const PdHandle& handle() const noexcept { return handle_; }

 private:
  const VerbsDevice& device_;
  PdHandle handle_;
};

}  // namespace pollen::verbs
