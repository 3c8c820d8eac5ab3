// Two ends on one kernel RDMA device: the software NIC's rig with another device under it.
//
// Without a device the suites skip, and say so; in the guest (POLLEN_GUEST) one must be there.
#pragma once

#include <poll.h>

#include <cstdlib>
#include <memory>

#include "../soft/rig.hpp"
#include "pollen/base/error.hpp"
#include "pollen/drivers/verbs/verbs.hpp"

namespace verbs_rig {

using namespace rig;

inline bool in_guest() { return std::getenv("POLLEN_GUEST") != nullptr; }

struct Opened {
  std::unique_ptr<driver::Driver> driver = verbs::make_driver();
  std::unique_ptr<driver::Device> device;
  std::string why_not;

  Opened() {
    try {
      device = driver->open("");
    } catch (const Error& error) {
      why_not = error.what();
    }
  }
};
inline Opened& opened() {
  static Opened once;
  return once;
}
inline driver::Device* device() { return opened().device.get(); }

// False: this machine has no device, and has said so.
inline bool has_device() {
  if (device() != nullptr) return true;
  if (in_guest()) FAIL(opened().why_not);
  MESSAGE("skipped: " << opened().why_not);
  return false;
}

inline bool readable(int fd, std::chrono::milliseconds limit) {
  pollfd waiter{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&waiter, 1, static_cast<int>(limit.count())) == 1;
}

// RNR timer and ACK timeout short: the guest is slow, but its wire is not.
inline QpOptions rc_options() {
  QpOptions options;
  options.rts.timeout = 14;
  options.rtr.min_rnr_timer = 1;
  return options;
}

struct VerbsPair {
  explicit VerbsPair(const QpOptions& the_options = rc_options(), std::size_t memory_bytes = 1 << 20)
      : options(the_options), a(*device(), options, memory_bytes), b(*device(), options, memory_bytes) {
    if (options.config.transport == driver::Transport::ud) {
      a.qp().activate(options.init);
      b.qp().activate(options.init);
    } else {
      connect(a, a.qp(), b, b.qp(), options);
    }
  }

  // Turns both ends until `done`, at most for `limit`. False: it never came.
  bool until(const std::function<bool()>& done, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!done()) {
      a.turn();
      b.turn();
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }
  bool sent(std::size_t count) {
    return until([&] { return a.sent.size() >= count; });
  }
  void expect(std::size_t offset, std::uint32_t bytes, std::uint64_t wr_id = 0) {
    REQUIRE(b.qp().post_receive(b.sge(offset, bytes), wr_id));
    b.qp().publish_receives();
  }

  QpOptions options;
  End a;
  End b;
};

}  // namespace verbs_rig

// First line of a test case that needs a device.
#define NEEDS_DEVICE() \
  if (!verbs_rig::has_device()) return
