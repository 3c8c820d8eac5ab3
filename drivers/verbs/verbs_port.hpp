// One worker's share of a device: completion queues, queue pairs, addresses, and the progress
// function that moves completions from the provider into the rings.
//
// Thread rules: one thread, but for add_event, which the device calls.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/verbs/address_cache.hpp"
#include "pollen/drivers/verbs/chain.hpp"
#include "pollen/drivers/verbs/device.hpp"
#include "pollen/drivers/verbs/handles.hpp"

namespace pollen::verbs {

class VerbsCq;
class VerbsQp;

class VerbsPort final : public driver::Port {
 public:
  VerbsPort(VerbsDevice& device, std::uint32_t number, const driver::PortInfo& info);
  ~VerbsPort() override;
  VerbsPort(const VerbsPort&) = delete;
  VerbsPort& operator=(const VerbsPort&) = delete;

  std::unique_ptr<driver::Cq> create_cq(std::uint32_t entries) override;
  std::unique_ptr<driver::Qp> create_qp(driver::Pd& pd, driver::Cq& send_cq, driver::Cq& recv_cq,
                                        const driver::QpConfig& config) override;
  queue::Address create_address(driver::Pd& pd, const driver::PathConfig& path, std::uint32_t qpn,
                                std::uint32_t qkey) override;
  driver::Progress progress() noexcept override;
  std::optional<driver::Event> next_event() override;
  int wake_fd() const noexcept override { return channel_->fd; }
  bool arm() noexcept override;
  void disarm() noexcept override;

  // For what the port made.
  VerbsDevice& device() noexcept { return device_; }
  std::uint32_t number() const noexcept { return number_; }
  std::uint32_t mtu_bytes() const noexcept { return mtu_bytes_; }
  bool needs_grh() const noexcept { return needs_grh_; }
  ibv_comp_channel* channel() noexcept { return channel_.get(); }
  Chain& chain() noexcept { return chain_; }
  AddressCache& addresses() noexcept { return addresses_; }

  void add_event(const driver::Event& event);
  void report_overrun(const VerbsCq& cq) noexcept;

  void add(VerbsCq& cq) { cqs_.push_back(&cq); }
  void remove(VerbsCq& cq) noexcept { std::erase(cqs_, &cq); }
  std::uint32_t add(VerbsQp& qp);  // returns its slot
  void remove(std::uint32_t slot) noexcept;

 private:
  bool advance() noexcept;
  std::uint32_t drain(VerbsCq& cq) noexcept;

  VerbsDevice& device_;
  std::uint32_t number_;
  std::uint32_t mtu_bytes_;
  bool needs_grh_;
  ChannelHandle channel_;
  Chain chain_{};
  AddressCache addresses_;
  std::vector<VerbsCq*> cqs_;
  std::vector<VerbsQp*> slots_;  // null: free
  std::mutex events_mutex_;
  std::deque<driver::Event> events_;
};

}  // namespace pollen::verbs
