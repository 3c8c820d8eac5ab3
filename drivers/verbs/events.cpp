#include "pollen/drivers/verbs/events.hpp"

#include <fmt/format.h>

#include "pollen/drivers/verbs/discovery.hpp"
#include "pollen/drivers/verbs/verbs_port.hpp"
#include "pollen/drivers/verbs/verbs_qp.hpp"

namespace pollen::verbs {

namespace {

using Kind = driver::Event::Kind;

driver::Event of_qp(const ibv_async_event& event, const char* what) {
  const std::uint32_t qpn = event.element.qp->qp_num;
  return {Kind::qp_error, qpn, fmt::format("QP {}: {}", qpn, what)};
}

driver::Event of_port(const ibv_async_event& event, Kind kind, const std::string& text) {
  return {kind, static_cast<std::uint32_t>(event.element.port_num), text};
}

}  // namespace

const VerbsPort* owner_of(const ibv_async_event& event) noexcept {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return &static_cast<VerbsQp*>(event.element.qp->qp_context)->port();
    case IBV_EVENT_CQ_ERR:
      return static_cast<VerbsPort*>(event.element.cq->cq_context);
    default:
      return nullptr;
  }
}

std::optional<driver::Event> describe(const ibv_async_event& event, const std::string& device) {
  const int port = event.element.port_num;
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
      return of_qp(event, "the device gave it up. Connect again; the kernel log may say why");
    case IBV_EVENT_QP_REQ_ERR:
      return of_qp(event,
                   "a request of the peer was malformed. Both sides must agree on MTU, PSN and read depth");
    case IBV_EVENT_QP_ACCESS_ERR:
      return of_qp(event,
                   "the peer asked for memory that it may not touch. Check its rkey and the region's access");
    case IBV_EVENT_CQ_ERR:
      return driver::Event{
          Kind::cq_overrun, 0,
          fmt::format("{}: a completion queue overran, and its QPs are broken. Create it with more "
                      "entries",
                      device)};
    case IBV_EVENT_PORT_ACTIVE:
      return of_port(event, Kind::port_up, fmt::format("{} port {} is up", device, port));
    case IBV_EVENT_PORT_ERR: {
      const std::string interface = network_interface(device, static_cast<std::uint32_t>(port));
      return of_port(event, Kind::port_down,
                     fmt::format("{} port {} is down. Check the cable and the switch{}", device, port,
                                 interface.empty() ? "" : fmt::format(", or: ip link set {} up", interface)));
    }
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
      return of_port(
          event, Kind::gid_change,
          fmt::format("{} port {}: its addresses have changed. Connections over one that is gone fail: "
                      "connect again",
                      device, port));
    case IBV_EVENT_DEVICE_FATAL:
      return driver::Event{
          Kind::device_fatal, 0,
          fmt::format("{} has failed or was removed. Close it; the kernel log may say why", device)};
    default:
      return std::nullopt;
  }
}

}  // namespace pollen::verbs
