// Two ends of the software NIC in one thread, connected by RC: what its engines cost by themselves,
// without another process to wait for.
#pragma once

#include <memory>
#include <span>

#include "pollen/drivers/soft/soft.hpp"
#include "pollen/memory/arena.hpp"
#include "pollen/queue/qp.hpp"
#include "quiet_device.hpp"

namespace perf {

class SoftLoop {
 public:
  SoftLoop();

  // Carries `count` messages of 64 bytes from the one end to the other: posts them inline in bursts,
  // with the receives for them, runs both engines and polls all completions. Throws Error when one fails.
  void carry_sends(std::uint32_t count);
  // RDMA WRITEs of `bytes` each.
  void carry_writes(std::uint32_t count, std::uint32_t bytes);

 private:
  struct End {
    std::unique_ptr<pollen::driver::Port> port;
    std::unique_ptr<pollen::driver::Pd> pd;
    std::unique_ptr<pollen::driver::Region> region;
    std::unique_ptr<pollen::driver::Cq> send_ring;
    std::unique_ptr<pollen::driver::Cq> recv_ring;
    std::unique_ptr<CompletionQueue> send_cq;
    std::unique_ptr<CompletionQueue> recv_cq;
    std::unique_ptr<Qp> qp;
  };
  void open(End& end);
  void connect(End& end, const End& peer);
  void wait_for_sends();
  std::uint32_t take(CompletionQueue& cq);

  std::unique_ptr<pollen::driver::Driver> driver_;
  std::unique_ptr<pollen::driver::Device> device_;
  pollen::memory::Arena arena_;
  End from_;
  End to_;
};

}  // namespace perf
