// Says to the probe: what happens in this scope is posting.
//
//   {
//     auto sample = worker.sample_post(qp);
//     auto burst = qp.send_burst();
//     while (burst.write(…)) …;
//   }                                  // the burst rings, then the sample ends
//
// In a turn that the probe times, the scope's time is booked as posting and not as the app's, and
// divided by the requests that were posted in it: that is the "ns per WR" of reports. It covers
// what the scope covers: building the requests, and the doorbell if it is rung inside. In all other
// turns, and outside of the loop, the cost is two predicted branches.
//
// Thread rules: owner only, within one call from the loop.
#pragma once

#include "pollen/probe/turn_timer.hpp"
#include "pollen/queue/send_queue.hpp"

namespace pollen::worker {

class [[nodiscard]] PostSample {
 public:
  PostSample(probe::TurnTimer& timer, const queue::SendQueue& sq) noexcept
      : timer_(timer), sq_(sq), before_(sq.posted_total()) {
    timer_.lap(probe::Phase::app);
  }
  ~PostSample() { timer_.lap_post(sq_.posted_total() - before_); }
  PostSample(const PostSample&) = delete;
  PostSample& operator=(const PostSample&) = delete;

 private:
  probe::TurnTimer& timer_;
  const queue::SendQueue& sq_;
  std::uint64_t before_;
};

}  // namespace pollen::worker
