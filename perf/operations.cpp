#include "operations.hpp"

#include <algorithm>

namespace perf {

namespace {

template <class Post>
[[gnu::always_inline]] inline bool in_bursts(SendQueue& sq, std::uint32_t count, std::uint32_t per_doorbell,
                                             Post post) noexcept {
  for (std::uint64_t done = 0; done < count;) {
    SendBurst burst = sq.burst();
    for (const std::uint64_t end = done + per_doorbell; done < end; ++done)
      if (!post(burst, WrOptions{.wr_id = done})) return false;
  }
  return true;
}

void ring_bare(BareRing& ring, const std::byte* last) noexcept {
  wqes_before_record();
  store_record(ring.record, ring.producer & 0xffff);
  record_before_uar();
  store_register(ring.uar, load_u64(last));
  flush_uar();
}

std::byte* bare_wqe(BareRing& ring, std::uint32_t opcode, std::uint32_t segments, std::uint8_t flags) noexcept {
  std::byte* wqe = ring.wqes + (ring.producer & (ring_blocks - 1)) * block_bytes;
  store_be(wqe, (ring.producer & 0xffff) << 8 | opcode);
  store_be(wqe + 4, qpn << 8 | segments);
  store_u64(wqe + 8, std::uint64_t{flags} << 24);
  return wqe;
}

}  // namespace

[[gnu::noinline]] bool post_send(SendQueue& sq, std::span<const std::byte, message_bytes> data, std::uint32_t count,
                                 std::uint32_t per_doorbell) noexcept {
  return in_bursts(sq, count, per_doorbell, [data](SendBurst& requests, const WrOptions& options) {
    return requests.send_inline(data, options);
  });
}

[[gnu::noinline]] bool post_send_of(SendQueue& sq, std::span<const std::byte> data, std::uint32_t count,
                                    std::uint32_t per_doorbell) noexcept {
  return in_bursts(sq, count, per_doorbell, [data](SendBurst& requests, const WrOptions& options) {
    return requests.send_inline(data, options);
  });
}

[[gnu::noinline]] bool post_write(SendQueue& sq, const Sge& local, const Remote& remote, std::uint32_t count,
                                  std::uint32_t per_doorbell) noexcept {
  return in_bursts(sq, count, per_doorbell, [local, remote](SendBurst& requests, const WrOptions& options) {
    return requests.write(local, remote, options);
  });
}

[[gnu::noinline]] bool post_receives(RecvQueue& rq, const Sge& buffer, std::uint32_t count,
                                     std::uint32_t per_doorbell) noexcept {
  for (std::uint64_t done = 0; done < count;) {
    for (const std::uint64_t end = done + per_doorbell; done < end; ++done)
      if (!rq.post(buffer, done)) return false;
    rq.publish();
  }
  return true;
}

[[gnu::noinline]] std::uint32_t poll(CompletionQueue& cq, Completion* out) noexcept { return cq.poll(out, poll_batch); }

[[gnu::noinline]] void post_bare_send(BareRing& ring, const std::byte* data, std::uint32_t count,
                                      std::uint32_t per_doorbell) noexcept {
  // Two blocks; the ring holds an even number of them, so that none wraps.
  constexpr std::uint32_t segments = 1 + inline_segments(message_bytes);
  for (std::uint32_t done = 0; done < count;) {
    std::byte* wqe = nullptr;
    for (const std::uint32_t end = done + per_doorbell; done < end; ++done) {
      wqe = bare_wqe(ring, MLX5_OPCODE_SEND, segments, 0);
      store_be(wqe + 16, message_bytes | inline_flag);
      std::memcpy(wqe + 20, data, message_bytes);
      ring.producer += blocks_of_segments(segments);
    }
    ring_bare(ring, wqe);
  }
}

[[gnu::noinline]] void post_bare_write(BareRing& ring, const Sge& local, const Remote& remote, std::uint32_t count,
                                       std::uint32_t per_doorbell) noexcept {
  for (std::uint32_t done = 0; done < count;) {
    std::byte* wqe = nullptr;
    for (const std::uint32_t end = done + per_doorbell; done < end; ++done) {
      wqe = bare_wqe(ring, MLX5_OPCODE_RDMA_WRITE, 3, 0);
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
}

}  // namespace perf
