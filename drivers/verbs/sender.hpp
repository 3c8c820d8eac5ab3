// The send half of a QP: reads WQEs out of the ring and posts them to the provider, in chains as
// long as the doorbell allows, and turns the provider's completions into CQEs.
//
// The provider signals what the WQE's CE bit asks for, and the last request of every chain, so that
// it is always known how far the provider is; for the latter no CQE is written.
//
// libibverbs has no NOP. A NOP is complete when what was posted before it is. Requests that the
// provider would refuse (a malformed WQE, an operation that the transport lacks) fail as on
// hardware: with a CQE of their own, in order, and what is behind them is flushed.
//
// Thread rules: the port's thread. Everything but the constructor is noexcept; no allocation but
// for the first datagram to an address.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pollen/drivers/driver.hpp"
#include "pollen/drivers/verbs/address_cache.hpp"
#include "pollen/drivers/verbs/chain.hpp"
#include "pollen/drivers/verbs/handles.hpp"
#include "pollen/drivers/verbs/verbs_cq.hpp"
#include "pollen/queue/send_queue.hpp"

namespace pollen::verbs {

struct SenderSetup {
  ibv_qp* qp;
  PdHandle pd;
  driver::Transport transport;
  VerbsCq& cq;
  Chain& chain;             // the port's
  AddressCache& addresses;  // the port's
  std::uint64_t wr_tag;     // ORed into every wr_id; its low 16 bits are free
  std::uint32_t provider_wrs;
  std::uint32_t provider_sge;
  std::uint32_t provider_inline_bytes;
  std::uint32_t max_message_bytes;  // UD: the MTU
  bool atomics;
};

class Sender {
 public:
  // The ring is the caller's and outlives this. Throws Error when a provider's inline limit is too
  // low and memory for copies can't be registered.
  Sender(const queue::SendRing& ring, SenderSetup setup);

  // Takes WQEs into account that the doorbell record covers.
  void doorbell() noexcept;
  // Posts what can be posted. True: something was done.
  bool advance() noexcept;
  void complete(std::uint16_t index, ibv_wc_status status, std::uint32_t vendor_error) noexcept;

  void start() noexcept { started_ = true; }  // the QP is ready to send
  void fail() noexcept { failed_ = true; }    // the QP is in error: what is not posted is flushed
  bool failed() const noexcept { return failed_; }
  // True, once: a request failed here and not at the provider, whose QP must be made to fail too.
  bool take_refusal() noexcept { return std::exchange(refused_, false); }
  void reset(std::uint64_t wr_tag) noexcept;

 private:
  // Of a WQE that was taken from the ring, by its first block: the ring is the program's and may be
  // overwritten as soon as it sees a CQE.
  struct Taken {
    std::uint32_t ordinal = 0;  // of the provider's request
    std::uint32_t bytes = 0;
    std::uint8_t opcode = 0;
    std::uint8_t blocks = 1;
    bool signalled = false;
  };

  bool post_chain() noexcept;
  // Fills the next request of the chain. 0, or the syndrome that the WQE fails with.
  std::uint8_t translate(std::uint32_t index, Taken& taken) noexcept;
  std::uint8_t gather(std::uint32_t index, std::uint32_t first_segment, Taken& taken) noexcept;
  void put_inline(std::uint32_t index, std::uint32_t segment, std::uint32_t bytes) noexcept;
  // Writes the CQEs that wait for nothing but what was completed: NOPs, a failed WQE, flushes.
  void settle() noexcept;
  void skip(std::uint32_t blocks) noexcept;  // nothing is outstanding: past a WQE at next_
  void write_cqe(std::uint32_t index, std::uint8_t syndrome, std::uint8_t vendor_syndrome) noexcept;
  Taken& taken(std::uint32_t index) noexcept { return taken_[index & (ring_.blocks - 1)]; }

  queue::SendRing ring_;
  SenderSetup setup_;
  // Free-running block indices: head_ <= next_ <= rung_.
  std::uint32_t rung_ = 0;
  std::uint32_t next_ = 0;  // the first that is not with the provider
  std::uint32_t head_ = 0;  // the first that is not complete
  // The provider's requests.
  std::uint32_t posted_ = 0;
  std::uint32_t completed_ = 0;
  std::uint8_t bad_wqe_ = 0;  // the syndrome of the WQE at next_
  bool started_ = false;
  bool failed_ = false;
  bool provider_failed_ = false;  // it reported an error, and not only flushes
  bool refused_ = false;
  std::vector<Taken> taken_;
  // For inline bytes that the provider does not take inline: a slot per request.
  std::uint32_t bounce_stride_ = 0;
  std::uint32_t bounce_slots_ = 0;  // a power of two
  std::unique_ptr<std::byte[]> bounce_;
  MrHandle bounce_mr_;
};

}  // namespace pollen::verbs
