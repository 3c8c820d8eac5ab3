// The receive half of a QP: posts the buffers that the doorbell record covers to the provider, in
// chains, and turns the provider's completions into CQEs. Receives complete in order.
//
// Thread rules: the port's thread. noexcept, no allocation.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "pollen/drivers/verbs/chain.hpp"
#include "pollen/drivers/verbs/verbs_cq.hpp"
#include "pollen/queue/recv_queue.hpp"

namespace pollen::verbs {

struct ReceiverSetup {
  ibv_qp* qp;
  std::uint32_t qpn;
  VerbsCq& cq;
  Chain& chain;          // the port's
  std::uint64_t wr_tag;  // every wr_id's
  std::uint32_t provider_wrs;
};

class Receiver {
 public:
  Receiver(const queue::RecvRing& ring, const ReceiverSetup& setup) : ring_(ring), setup_(setup) {}

  // Posts what can be posted. True: something was done.
  bool advance() noexcept;
  void complete(const ibv_wc& completion) noexcept;

  void start() noexcept { started_ = true; }  // the QP takes buffers
  void fail() noexcept { failed_ = true; }    // the QP is in error: what is not posted is flushed
  bool failed() const noexcept { return failed_; }
  void reset(std::uint64_t wr_tag) noexcept;

 private:
  bool post_chain() noexcept;
  void flush() noexcept;

  queue::RecvRing ring_;
  ReceiverSetup setup_;
  // Free-running: completed_ <= posted_ <= published_.
  std::uint32_t published_ = 0;
  std::uint32_t posted_ = 0;
  std::uint32_t completed_ = 0;
  bool started_ = false;
  bool failed_ = false;
};

}  // namespace pollen::verbs
