#include "pollen/drivers/verbs/verbs_port.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "pollen/base/error.hpp"
#include "pollen/drivers/verbs/verbs_cq.hpp"
#include "pollen/drivers/verbs/verbs_qp.hpp"

namespace pollen::verbs {

namespace {

constexpr std::uint32_t poll_batch = 32;

void require(const char* what, std::uint64_t asked, std::uint64_t least, std::uint64_t most,
             const std::string& device) {
  if (asked >= least && asked <= most) return;
  throw Error(EINVAL, {.attempted = fmt::format("create {} of {}", what, asked),
                       .on = device,
                       .why = fmt::format("the device allows {} to {}", least, most),
                       .remedy = "Ask for a number in that range"});
}

}  // namespace

VerbsPort::VerbsPort(VerbsDevice& device, std::uint32_t number, const driver::PortInfo& info)
    : device_(device),
      number_(number),
      mtu_bytes_(info.mtu_bytes),
      needs_grh_(info.needs_grh),
      addresses_(static_cast<std::uint8_t>(number)) {
  channel_.reset(ibv_create_comp_channel(device.context().get()));
  if (channel_ == nullptr) device.context().fail(errno, "create a completion channel");
  make_nonblocking(channel_->fd);
  device.attach(*this);
}

VerbsPort::~VerbsPort() { device_.detach(*this); }

std::unique_ptr<driver::Cq> VerbsPort::create_cq(std::uint32_t entries) {
  require("a completion queue", entries, 1, device_.limits().max_cq_entries, device_.info().name);
  return std::make_unique<VerbsCq>(*this, std::bit_ceil(entries));
}

std::unique_ptr<driver::Qp> VerbsPort::create_qp(driver::Pd& pd, driver::Cq& send_cq, driver::Cq& recv_cq,
                                                 const driver::QpConfig& config) {
  const driver::Limits& limits = device_.limits();
  const std::string& name = device_.info().name;
  require("a send queue", config.send_wrs, 1, limits.max_send_wrs, name);
  require("a receive queue", config.recv_wrs, 0, limits.max_recv_wrs, name);
  require("a gather list", config.send_sge, 0, limits.max_sge, name);
  require("a scatter list", config.recv_sge, 0, limits.max_sge, name);
  require("inline data", config.inline_bytes, 0, limits.max_inline_bytes, name);
  return std::make_unique<VerbsQp>(*this, static_cast<VerbsPd&>(pd).handle(), static_cast<VerbsCq&>(send_cq),
                                   static_cast<VerbsCq&>(recv_cq), config);
}

queue::Address VerbsPort::create_address(driver::Pd& pd, const driver::PathConfig& path, std::uint32_t qpn,
                                         std::uint32_t qkey) {
  // Without a LID there is no other way to name the peer.
  const queue::Address address{address_segment(path, qpn, qkey, needs_grh_ || path.remote_lid == 0)};
  // Made now, so that a peer that can't be reached is known before anything is sent to it.
  if (addresses_.find(static_cast<VerbsPd&>(pd).handle(), address.segment) == nullptr)
    device_.context().fail(errno,
                           fmt::format("create an address of {} (GID index {})", to_string(path.remote_gid),
                                       path.local_gid_index),
                           "Check that both GIDs are of one network and RoCE version");
  return address;
}

std::uint32_t VerbsPort::add(VerbsQp& qp) {
  const auto free = std::find(slots_.begin(), slots_.end(), nullptr);
  const auto slot = static_cast<std::uint32_t>(free - slots_.begin());
  if (free == slots_.end())
    slots_.push_back(&qp);
  else
    *free = &qp;
  return slot;
}

void VerbsPort::remove(std::uint32_t slot) noexcept { slots_[slot] = nullptr; }

driver::Progress VerbsPort::progress() noexcept {
  return {[](void* port) noexcept { return static_cast<VerbsPort*>(port)->advance(); }, this};
}

std::uint32_t VerbsPort::drain(VerbsCq& cq) noexcept {
  std::array<ibv_wc, poll_batch> completions;
  const int count = ibv_poll_cq(cq.handle(), static_cast<int>(completions.size()), completions.data());
  for (int i = 0; i < count; ++i) {
    const ibv_wc& completion = completions[static_cast<std::size_t>(i)];
    const std::uint32_t slot = slot_of(completion.wr_id);
    // A QP that is gone may have left completions behind, and its slot may be another's by now.
    if (slot >= slots_.size() || slots_[slot] == nullptr || slots_[slot]->qpn() != completion.qp_num)
      continue;
    slots_[slot]->complete(completion);
  }
  return static_cast<std::uint32_t>(std::max(0, count));
}

bool VerbsPort::advance() noexcept {
  bool did = false;
  for (VerbsCq* cq : cqs_) did = drain(*cq) != 0 || did;
  for (VerbsQp* qp : slots_)
    if (qp != nullptr) did = qp->advance() || did;
  return did;
}

void VerbsPort::add_event(const driver::Event& event) {
  const std::lock_guard lock(events_mutex_);
  events_.push_back(event);
}

void VerbsPort::report_overrun(const VerbsCq& cq) noexcept {
  for (VerbsQp* qp : slots_)
    if (qp != nullptr && qp->uses(cq)) qp->fail();
  try {
    add_event({driver::Event::Kind::cq_overrun, 0,
               fmt::format("{}: a completion queue of {} entries overran, and its QPs are broken. Create "
                           "it with more entries",
                           device_.info().name, cq.ring().entries)});
  } catch (...) {
    // No memory for the words: the QPs are in error all the same.
  }
}

std::optional<driver::Event> VerbsPort::next_event() {
  device_.distribute_events();
  std::optional<driver::Event> event;
  {
    const std::lock_guard lock(events_mutex_);
    if (events_.empty()) return std::nullopt;
    event = std::move(events_.front());
    events_.pop_front();
  }
  if (event->kind == driver::Event::Kind::qp_error)
    for (VerbsQp* qp : slots_)
      if (qp != nullptr && qp->qpn() == event->number) qp->fail();
  return event;
}

bool VerbsPort::arm() noexcept {
  if (advance()) return false;
  for (const VerbsCq* cq : cqs_)
    if (ibv_req_notify_cq(cq->handle(), 0) != 0) return false;
  // What came before the queues were armed wakes nobody.
  return !advance();
}

void VerbsPort::disarm() noexcept {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
}

}  // namespace pollen::verbs
