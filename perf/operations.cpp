#include "operations.hpp"

namespace perf {

namespace {

void ring_bare(BareRing& ring, const std::byte* last) noexcept {
  wqes_before_record();
  store_record(ring.record, ring.producer & 0xffff);
  record_before_uar();
  store_register(ring.uar, load_u64(last));
  flush_uar();
}

std::byte* bare_wqe(BareRing& ring, std::uint32_t opcode, std::uint32_t segments) noexcept {
  std::byte* wqe = ring.wqes + (ring.producer & (ring_blocks - 1)) * block_bytes;
  store_be(wqe, (ring.producer & 0xffff) << 8 | opcode);
  store_be(wqe + 4, qpn << 8 | segments);
  store_u64(wqe + 8, 0);
  return wqe;
}

}  // namespace

[[gnu::noinline]] bool post_send(SendQueue& sq, std::span<const std::byte, message_bytes> data,
                                 std::uint32_t count) noexcept {
  SendBurst requests = sq.burst();
  bool all = true;
  for (std::uint64_t i = 0; i < count; ++i) all &= requests.send_inline(data, {.wr_id = i});
  return all;
}

[[gnu::noinline]] bool post_send_of(SendQueue& sq, std::span<const std::byte> data,
                                    std::uint32_t count) noexcept {
  SendBurst requests = sq.burst();
  bool all = true;
  for (std::uint64_t i = 0; i < count; ++i) all &= requests.send_inline(data, {.wr_id = i});
  return all;
}

[[gnu::noinline]] bool post_write(SendQueue& sq, Sge local, Remote remote, std::uint32_t count) noexcept {
  SendBurst requests = sq.burst();
  bool all = true;
  for (std::uint64_t i = 0; i < count; ++i) all &= requests.write(local, remote, {.wr_id = i});
  return all;
}

[[gnu::noinline]] bool post_receives(RecvQueue& rq, Sge buffer, std::uint32_t count) noexcept {
  bool all = true;
  for (std::uint64_t i = 0; i < count; ++i) all &= rq.post(buffer, i);
  rq.publish();
  return all;
}

[[gnu::noinline]] std::uint32_t poll(CompletionQueue& cq, Completion* out) noexcept {
  return cq.poll(out, poll_batch);
}

[[gnu::noinline]] void post_bare_send(BareRing& ring, const std::byte* data, std::uint32_t count) noexcept {
  // Two blocks; the ring holds an even number of them, so that none wraps.
  constexpr std::uint32_t segments = 1 + inline_segments(message_bytes);
  std::byte* wqe = nullptr;
  for (std::uint32_t i = 0; i < count; ++i) {
    wqe = bare_wqe(ring, MLX5_OPCODE_SEND, segments);
    store_be(wqe + 16, message_bytes | inline_flag);
    std::memcpy(wqe + 20, data, message_bytes);
    ring.producer += blocks_of_segments(segments);
  }
  ring_bare(ring, wqe);
}

[[gnu::noinline]] void post_bare_write(BareRing& ring, Sge local, Remote remote,
                                       std::uint32_t count) noexcept {
  std::byte* wqe = nullptr;
  for (std::uint32_t i = 0; i < count; ++i) {
    wqe = bare_wqe(ring, MLX5_OPCODE_RDMA_WRITE, 3);
    store_be(wqe + 16, remote.address);
    store_be(wqe + 24, remote.rkey);
    store_u32(wqe + 28, 0);
    store_be(wqe + 32, local.bytes);
    store_be(wqe + 36, local.lkey);
    store_be(wqe + 40, reinterpret_cast<std::uint64_t>(local.address));
    ++ring.producer;
  }
  ring_bare(ring, wqe);
}

}  // namespace perf
