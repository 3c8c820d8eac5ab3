#include "pollen/drivers/verbs/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "pollen/base/error.hpp"
#include "pollen/drivers/verbs/chain.hpp"
#include "pollen/drivers/verbs/discovery.hpp"
#include "pollen/drivers/verbs/events.hpp"
#include "pollen/drivers/verbs/verbs_port.hpp"
#include "pollen/queue/format.hpp"

namespace pollen::verbs {

namespace {

// What the device allows and the rings can express.
driver::Limits ring_limits(driver::Limits limits, std::uint32_t max_message_bytes) {
  constexpr std::uint32_t most_cq_entries = 1U << 22;
  limits.max_send_wrs = std::min(limits.max_send_wrs, queue::max_send_blocks);
  limits.max_recv_wrs = std::bit_floor(std::min(limits.max_recv_wrs, 32768U));
  limits.max_sge = std::min(limits.max_sge, max_gather);
  limits.max_cq_entries = std::bit_floor(std::min(limits.max_cq_entries, most_cq_entries));
  limits.max_message_bytes = max_message_bytes;
  limits.max_inline_bytes = 828;  // what a provider does not take inline is copied: see sender.hpp
  return limits;
}

}  // namespace

VerbsDevice::VerbsDevice(ibv_context* context, driver::DeviceInfo info)
    : info_(std::move(info)), context_(context, info_.name) {
  ibv_device_attr device{};
  if (const int failed = ibv_query_device(context, &device); failed != 0)
    context_.fail(failed, "read the limits of the device");
  ibv_port_attr port{};
  if (const int failed = ibv_query_port(context, 1, &port); failed != 0)
    context_.fail(failed, "query port 1");
  ports_there_are_ = device.phys_port_cnt;
  has_atomics_ = device.atomic_cap != IBV_ATOMIC_NONE;
  limits_ = ring_limits(context_.limits(), port.max_msg_sz);
}

driver::PortInfo VerbsDevice::query_port(std::uint32_t port) const {
  if (port == 0 || port > ports_there_are_)
    throw Error(EINVAL, {.attempted = fmt::format("use port {}", port),
                         .on = info_.name,
                         .why = fmt::format("its ports are 1 to {}", ports_there_are_),
                         .remedy = "Name one of them"});
  return context_.query_port(port);
}

std::unique_ptr<driver::Pd> VerbsDevice::create_pd() {
  ibv_pd* pd = ibv_alloc_pd(context_.get());
  if (pd == nullptr) context_.fail(errno, "create a protection domain");
  return std::make_unique<VerbsPd>(*this, PdHandle(pd, HandleEnd{}));
}

std::unique_ptr<driver::Port> VerbsDevice::open_port(std::uint32_t port) {
  const driver::PortInfo info = query_port(port);
  if (!info.active) {
    const std::string interface = network_interface(info_.name, port);
    throw Error(ENETDOWN, {.attempted = fmt::format("open port {}", port),
                           .on = info_.name,
                           .why = "the port is down",
                           .remedy = interface.empty()
                                         ? "Check cable, switch and subnet manager"
                                         : fmt::format("Check the cable, or: ip link set {} up", interface)});
  }
  return std::make_unique<VerbsPort>(*this, port, info);
}

void VerbsDevice::attach(VerbsPort& port) {
  const std::lock_guard lock(mutex_);
  ports_.push_back(&port);
}

void VerbsDevice::detach(VerbsPort& port) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(ports_, &port);
}

void VerbsDevice::distribute_events() {
  const std::lock_guard lock(mutex_);
  ibv_async_event raw;
  while (ibv_get_async_event(context_.get(), &raw) == 0) {
    // A QP or CQ waits, in its end, until its event is acknowledged: it and its port are still there.
    const VerbsPort* const owner = owner_of(raw);
    if (const auto event = describe(raw, info_.name))
      for (VerbsPort* port : ports_)
        if (owner != nullptr
                ? port == owner
                : event->kind == driver::Event::Kind::device_fatal || event->number == port->number())
          port->add_event(*event);
    ibv_ack_async_event(&raw);
  }
}

}  // namespace pollen::verbs
