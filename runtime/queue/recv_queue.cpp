#include "pollen/queue/recv_queue.hpp"

#include "pollen/queue/completion_queue.hpp"

namespace pollen::queue {

RecvQueue::RecvQueue(const RecvRing& ring, CompletionQueue& cq)
    : ring_(ring),
      mask_(ring.entries == 0 ? 0 : ring.entries - 1),
      wr_ids_(std::make_unique<std::uint64_t[]>(ring.entries)),
      cq_(&cq) {
  assert((ring.entries & mask_) == 0);
}

}  // namespace pollen::queue
