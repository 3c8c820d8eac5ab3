#include "soft_loop.hpp"

#include <algorithm>
#include <cerrno>

#include "pollen/base/error.hpp"

namespace perf {

namespace {

constexpr std::uint32_t depth = 128;
constexpr std::size_t arena_bytes = 1 << 20;

// Posts `count` requests in one burst; the QP is idle and has room for them.
template <class Post>
void post_burst(Qp& qp, std::uint32_t count, Post post) {
  SendBurst sends = qp.send_burst();
  for (std::uint64_t i = 0; i < count; ++i) post(sends, i);
}

pollen::soft::SoftOptions in_process() {
  pollen::soft::SoftOptions options;
  options.wire = pollen::soft::Wire::in_process;
  return options;
}

}  // namespace

SoftLoop::SoftLoop()
    : driver_(pollen::soft::make_driver(in_process())),
      device_(driver_->open("")),
      arena_({.bytes = arena_bytes}) {
  open(from_);
  open(to_);
  connect(from_, to_);
  connect(to_, from_);
}

void SoftLoop::open(End& end) {
  end.port = device_->open_port();
  end.pd = device_->create_pd();
  end.region = end.pd->register_memory(arena_.span(), pollen::driver::all_access, {arena_.fd(), 0});
  end.send_ring = end.port->create_cq(4 * depth);
  end.recv_ring = end.port->create_cq(4 * depth);
  end.send_cq = std::make_unique<CompletionQueue>(end.send_ring->ring());
  end.recv_cq = std::make_unique<CompletionQueue>(end.recv_ring->ring());
  const pollen::driver::QpConfig config{.send_wrs = depth, .recv_wrs = depth, .inline_bytes = message_bytes};
  end.qp = std::make_unique<Qp>(end.port->create_qp(*end.pd, *end.send_ring, *end.recv_ring, config),
                                *end.send_cq, *end.recv_cq, pollen::driver::Transport::rc, burst);
}

void SoftLoop::connect(End& end, const End& peer) {
  pollen::driver::RtrConfig rtr;
  rtr.path.remote_gid = device_->query_port().gids.at(1).gid;
  rtr.path.local_gid_index = 1;
  rtr.remote_qpn = peer.qp->qpn();
  rtr.mtu_bytes = 4096;
  end.qp->connect({.remote_access = pollen::driver::all_access, .qkey = 0}, rtr, {});
}

std::uint32_t SoftLoop::take(CompletionQueue& cq) {
  Completion out[poll_batch];
  std::uint32_t retired = 0;
  while (const std::uint32_t count = cq.poll(out, poll_batch))
    for (std::uint32_t i = 0; i < count; ++i) {
      if (!out[i].ok())
        throw pollen::Error(EIO, {.attempted = "carry a message over the software NIC",
                                  .why = describe(out[i]),
                                  .remedy = "Run its tests: this is a defect"});
      retired += out[i].wr_count;
    }
  return retired;
}

void SoftLoop::wait_for_sends() {
  const pollen::driver::Progress mine = from_.port->progress();
  const pollen::driver::Progress theirs = to_.port->progress();
  // The turns of a few milliseconds; it takes some tens.
  for (std::uint32_t turn = 0; from_.qp->sq().outstanding() != 0; ++turn) {
    if (turn == 1'000'000)
      throw pollen::Error(ETIMEDOUT, {.attempted = "carry a message over the software NIC",
                                      .why = "it did not complete in a million turns",
                                      .remedy = "Run its tests: this is a defect"});
    mine();
    theirs();
    take(*from_.send_cq);
    take(*to_.recv_cq);
  }
}

[[gnu::noinline]] void SoftLoop::carry_sends(std::uint32_t count) {
  const Sge buffer{arena_.base(), message_bytes, to_.region->lkey()};
  const std::span<const std::byte, message_bytes> data(arena_.base() + message_bytes, message_bytes);
  while (count != 0) {
    const std::uint32_t part = std::min(count, burst);
    for (std::uint32_t i = 0; i < part; ++i) to_.qp->post_receive(buffer, i);
    to_.qp->publish_receives();
    post_burst(*from_.qp, part,
               [&](SendBurst& sends, std::uint64_t i) { return sends.send_inline(data, {.wr_id = i}); });
    wait_for_sends();
    count -= part;
  }
}

[[gnu::noinline]] void SoftLoop::carry_writes(std::uint32_t count, std::uint32_t bytes) {
  const Sge local{arena_.base(), bytes, from_.region->lkey()};
  const Remote remote{reinterpret_cast<std::uint64_t>(arena_.base() + arena_bytes / 2), to_.region->rkey()};
  while (count != 0) {
    const std::uint32_t part = std::min(count, burst);
    post_burst(*from_.qp, part,
               [&](SendBurst& sends, std::uint64_t i) { return sends.write(local, remote, {.wr_id = i}); });
    wait_for_sends();
    count -= part;
  }
}

}  // namespace perf
