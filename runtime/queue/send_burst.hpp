// Builds work requests in place, in the send ring:
//
//   auto burst = qp.send_burst();
//   while (burst.write(sge, remote, {.wr_id = n})) …;
//   burst.ring();
//
// Every call returns false when the ring or the completion queue has no room, and then has done
// nothing: a full ring is a return value, never a wait. `ring()` tells the device, once for all
// of them; so does the destructor. `defer()` leaves that to a later SendQueue::ring_doorbell.
//
// Lengths are checked against the QP's limits by assert only where the ring could be damaged;
// a request that the device refuses completes with an error.
//
// Cost: no allocation, lock, system call, virtual call or branch on the driver per request.
#pragma once

#include <cassert>
#include <span>

#include "pollen/queue/completion_queue.hpp"
#include "pollen/queue/send_queue.hpp"
#include "pollen/queue/work_request.hpp"

namespace pollen::queue {

class SendBurst {
 public:
  explicit SendBurst(SendQueue& sq) noexcept
      : sq_(sq),
        wqes_(sq.ring_.wqes),
        wr_ids_(reinterpret_cast<std::byte*>(sq.wr_ids_.get())),
        mask_(sq.ring_.blocks * sizeof(std::uint64_t) - 1),
        qpn_be_(big_endian(sq.ring_.qpn << 8)),
        producer_(sq.producer_),
        posted_(sq.posted_),
        published_(sq.posted_),
        last_(sq.last_) {}
  ~SendBurst() {
    if (size() != 0) ring();
  }
  SendBurst(const SendBurst&) = delete;
  SendBurst& operator=(const SendBurst&) = delete;

  // --- RC, UC -------------------------------------------------------------------------------

  bool send(const Sge& local, const WrOptions& options = {}) noexcept {
    return put_simple(MLX5_OPCODE_SEND, 0, local, options);
  }
  bool send(std::span<const Sge> local, const WrOptions& options = {}) noexcept {
    return put_gather<0>(MLX5_OPCODE_SEND, 0, nullptr, local, options);
  }
  bool send_inline(std::span<const std::byte> data, const WrOptions& options = {}) noexcept {
    return put_inline<0>(MLX5_OPCODE_SEND, 0, nullptr, data, options);
  }
  // A size that the compiler knows costs a quarter less.
  template <std::size_t size>
  requires(size != std::dynamic_extent) bool send_inline(std::span<const std::byte, size> data,
                                                         const WrOptions& options = {}) noexcept {
    return put_inline<0>(MLX5_OPCODE_SEND, 0, nullptr, data, options);
  }
  bool send_with_imm(const Sge& local, std::uint32_t imm, const WrOptions& options = {}) noexcept {
    return put_simple(MLX5_OPCODE_SEND_IMM, big_endian(imm), local, options);
  }
  bool send_with_imm(std::span<const Sge> local, std::uint32_t imm, const WrOptions& options = {}) noexcept {
    return put_gather<0>(MLX5_OPCODE_SEND_IMM, big_endian(imm), nullptr, local, options);
  }
  bool send_inline_with_imm(std::span<const std::byte> data, std::uint32_t imm,
                            const WrOptions& options = {}) noexcept {
    return put_inline<0>(MLX5_OPCODE_SEND_IMM, big_endian(imm), nullptr, data, options);
  }
  // Sends, and takes the peer's right to use its own `rkey` away.
  bool send_with_inv(const Sge& local, std::uint32_t rkey, const WrOptions& options = {}) noexcept {
    return put_simple(MLX5_OPCODE_SEND_INVAL, big_endian(rkey), local, options);
  }

  bool write(const Sge& local, const Remote& remote, const WrOptions& options = {}) noexcept {
    return put_remote(MLX5_OPCODE_RDMA_WRITE, 0, local, remote, options);
  }
  bool write(std::span<const Sge> local, const Remote& remote, const WrOptions& options = {}) noexcept {
    return put_gather<1>(MLX5_OPCODE_RDMA_WRITE, 0, &remote, local, options);
  }
  bool write_inline(std::span<const std::byte> data, const Remote& remote,
                    const WrOptions& options = {}) noexcept {
    return put_inline<1>(MLX5_OPCODE_RDMA_WRITE, 0, &remote, data, options);
  }
  template <std::size_t size>
  requires(size != std::dynamic_extent) bool write_inline(std::span<const std::byte, size> data,
                                                          const Remote& remote,
                                                          const WrOptions& options = {}) noexcept {
    return put_inline<1>(MLX5_OPCODE_RDMA_WRITE, 0, &remote, data, options);
  }
  bool write_with_imm(const Sge& local, const Remote& remote, std::uint32_t imm,
                      const WrOptions& options = {}) noexcept {
    return put_remote(MLX5_OPCODE_RDMA_WRITE_IMM, big_endian(imm), local, remote, options);
  }
  bool write_with_imm(std::span<const Sge> local, const Remote& remote, std::uint32_t imm,
                      const WrOptions& options = {}) noexcept {
    return put_gather<1>(MLX5_OPCODE_RDMA_WRITE_IMM, big_endian(imm), &remote, local, options);
  }
  bool write_inline_with_imm(std::span<const std::byte> data, const Remote& remote, std::uint32_t imm,
                             const WrOptions& options = {}) noexcept {
    return put_inline<1>(MLX5_OPCODE_RDMA_WRITE_IMM, big_endian(imm), &remote, data, options);
  }

  bool read(const Sge& local, const Remote& remote, const WrOptions& options = {}) noexcept {
    return put_remote(MLX5_OPCODE_RDMA_READ, 0, local, remote, options);
  }
  bool read(std::span<const Sge> local, const Remote& remote, const WrOptions& options = {}) noexcept {
    return put_gather<1>(MLX5_OPCODE_RDMA_READ, 0, &remote, local, options);
  }

  // 8 bytes at an 8-byte aligned remote address; the value before goes to `local`.
  bool fetch_add(const Sge& local, const Remote& remote, std::uint64_t add,
                 const WrOptions& options = {}) noexcept {
    return put_atomic(MLX5_OPCODE_ATOMIC_FA, local, remote, add, 0, options);
  }
  bool cmp_swap(const Sge& local, const Remote& remote, std::uint64_t compare, std::uint64_t swap,
                const WrOptions& options = {}) noexcept {
    return put_atomic(MLX5_OPCODE_ATOMIC_CS, local, remote, swap, compare, options);
  }

  bool nop(const WrOptions& options = {}) noexcept {
    if (!reserve(1)) return false;
    std::byte* wqe = next();
    put_ctrl(wqe, MLX5_OPCODE_NOP, 1, 0, options);
    return commit(wqe, 1, 0, options);
  }

  // --- UD -----------------------------------------------------------------------------------

  bool send_to(const Address& to, const Sge& local, const WrOptions& options = {}) noexcept {
    return put_datagram(MLX5_OPCODE_SEND, 0, to, local, options);
  }
  bool send_to_with_imm(const Address& to, const Sge& local, std::uint32_t imm,
                        const WrOptions& options = {}) noexcept {
    return put_datagram(MLX5_OPCODE_SEND_IMM, big_endian(imm), to, local, options);
  }
  bool send_to(const Address& to, std::span<const Sge> local, const WrOptions& options = {}) noexcept {
    return put_gather<3>(MLX5_OPCODE_SEND, 0, &to, local, options);
  }
  bool send_to_with_imm(const Address& to, std::span<const Sge> local, std::uint32_t imm,
                        const WrOptions& options = {}) noexcept {
    return put_gather<3>(MLX5_OPCODE_SEND_IMM, big_endian(imm), &to, local, options);
  }
  bool send_inline_to_with_imm(const Address& to, std::span<const std::byte> data, std::uint32_t imm,
                               const WrOptions& options = {}) noexcept {
    return put_inline<3>(MLX5_OPCODE_SEND_IMM, big_endian(imm), &to, data, options);
  }
  bool send_inline_to(const Address& to, std::span<const std::byte> data,
                      const WrOptions& options = {}) noexcept {
    return put_inline<3>(MLX5_OPCODE_SEND, 0, &to, data, options);
  }

  // --- end of the burst ---------------------------------------------------------------------

  // Requests built since the last ring() or defer().
  std::uint32_t size() const noexcept { return posted_ - published_; }

  // Hands the requests to the device: doorbell record, then doorbell. Returns their number.
  std::uint32_t ring() noexcept {
    const std::uint32_t count = defer();
    sq_.ring_doorbell();
    return count;
  }

  // Leaves the doorbell to SendQueue::ring_doorbell, which can cover several bursts.
  std::uint32_t defer() noexcept {
    const std::uint32_t count = size();
    if (count == 0) return 0;
    sq_.producer_ = producer_;
    sq_.posted_ = posted_;
    published_ = posted_;
    sq_.bytes_posted_ += bytes_;
    bytes_ = 0;
    sq_.last_ = last_;
    sq_.cq_->exchange(sq_.held_, count);
    sq_.held_ = 0;
    room_ = 0;
    return count;
  }

 private:
  // Takes room for a WQE of `blocks`; false: there is none. One comparison covers three things
  // that are rare: the ring is full, the completion queue is, or a WQE is due to be signalled.
  [[gnu::always_inline]] bool reserve(std::uint32_t blocks) noexcept {
    if (room_ < blocks) [[unlikely]] {
      room_ = sq_.room_for(last_, producer_, posted_, blocks);
      if (room_ == 0) return false;
    }
    room_ -= blocks;
    return true;
  }
  // The next WQE's place, as the byte offset of its wr_id: an eighth of its own in the ring. One
  // register so addresses both.
  std::size_t place() const noexcept { return producer_ * sizeof(std::uint64_t) & mask_; }
  std::byte* next() const noexcept { return wqes_ + place() * (block_bytes / sizeof(std::uint64_t)); }

  void put_ctrl(std::byte* wqe, std::uint32_t opcode, std::uint32_t segments, std::uint32_t imm_be,
                const WrOptions& options) noexcept {
    // All but the index is the same for every WQE of a kind: one store, then the index over it.
    store_u64(wqe, static_cast<std::uint64_t>(qpn_be_ | big_endian(segments)) << 32 | big_endian(opcode));
    store_be(wqe + 1, static_cast<std::uint16_t>(producer_));
    const std::uint64_t flags = (options.fence ? ctrl_fence : 0U) | (options.solicited ? ctrl_solicited : 0U);
    store_u64(wqe + 8, flags << 24 | static_cast<std::uint64_t>(imm_be) << 32);
  }
  static void put_remote_segment(std::byte* at, const Remote& remote) noexcept {
    store_be(at, remote.address);
    store_be(at + 8, remote.rkey);
    store_u32(at + 12, 0);
  }
  static void put_data(std::byte* at, const Sge& local) noexcept {
    store_be(at, local.bytes);
    store_be(at + 4, local.lkey);
    store_be(at + 8, reinterpret_cast<std::uint64_t>(local.address));
  }

  [[gnu::always_inline]] bool commit(std::byte* wqe, std::uint32_t blocks, std::uint32_t bytes,
                                     const WrOptions& options) noexcept {
    store_u64(wr_ids_ + place(), options.wr_id);
    last_ = reinterpret_cast<CtrlSegment*>(wqe);
    producer_ += blocks;
    bytes_ += bytes;
    ++posted_;
    if (options.signal) sq_.signal(last_, producer_, posted_);
    return true;
  }

  // The shapes of one gather entry. The entry is taken by value: its fields then stay in registers,
  // while the WQE's stores could alias a reference.
  [[gnu::always_inline]] bool put_simple(std::uint32_t opcode, std::uint32_t imm_be, Sge local,
                                         const WrOptions& options) noexcept {
    if (local.bytes == 0) [[unlikely]]
      return put_empty<0>(opcode, imm_be, nullptr, options);
    if (!reserve(1)) return false;
    std::byte* wqe = next();
    put_ctrl(wqe, opcode, 2, imm_be, options);
    put_data(wqe + 16, local);
    return commit(wqe, 1, local.bytes, options);
  }

  [[gnu::always_inline]] bool put_remote(std::uint32_t opcode, std::uint32_t imm_be, Sge local, Remote remote,
                                         const WrOptions& options) noexcept {
    if (local.bytes == 0) [[unlikely]]
      return put_empty<1>(opcode, imm_be, &remote, options);
    if (!reserve(1)) return false;
    std::byte* wqe = next();
    put_ctrl(wqe, opcode, 3, imm_be, options);
    put_remote_segment(wqe + 16, remote);
    put_data(wqe + 32, local);
    return commit(wqe, 1, local.bytes, options);
  }

  [[gnu::always_inline]] bool put_atomic(std::uint32_t opcode, Sge local, const Remote& remote,
                                         std::uint64_t swap_add, std::uint64_t compare,
                                         const WrOptions& options) noexcept {
    if (!reserve(1)) return false;
    std::byte* wqe = next();
    put_ctrl(wqe, opcode, 4, 0, options);
    put_remote_segment(wqe + 16, remote);
    store_be(wqe + 32, swap_add);
    store_be(wqe + 40, compare);
    put_data(wqe + 48, local);
    return commit(wqe, 1, local.bytes, options);
  }

  [[gnu::always_inline]] bool put_datagram(std::uint32_t opcode, std::uint32_t imm_be, const Address& to,
                                           Sge local, const WrOptions& options) noexcept {
    const std::uint32_t data = local.bytes != 0;
    const std::uint32_t blocks = blocks_of_segments(4 + data);
    if (!reserve(blocks)) return false;
    std::byte* wqe = next();
    put_ctrl(wqe, opcode, 4 + data, imm_be, options);
    put_head<3>(wqe, &to);
    if (data != 0) put_data(block_behind(wqe), local);
    return commit(wqe, blocks, local.bytes, options);
  }

  // The block behind `wqe`'s first, which for the ring's last block is the ring's first.
  std::byte* block_behind(std::byte* wqe) const noexcept {
    std::byte* next = wqe + block_bytes;
    return next == ring_end() ? wqes_ : next;
  }

  std::byte* ring_end() const noexcept { return wqes_ + (mask_ + 1) * (block_bytes / sizeof(std::uint64_t)); }

  // What stands between ctrl and the data: 0 segments nothing, 1 a Remote, 3 an Address.
  template <std::uint32_t head_segments>
  void put_head(std::byte* wqe, const void* head) noexcept {
    if constexpr (head_segments == 1) put_remote_segment(wqe + 16, *static_cast<const Remote*>(head));
    if constexpr (head_segments == 3)
      std::memcpy(wqe + 16, &static_cast<const Address*>(head)->segment, sizeof(DatagramSegment));
  }

  // Zero bytes: no data segment at all.
  template <std::uint32_t head_segments>
  bool put_empty(std::uint32_t opcode, std::uint32_t imm_be, const void* head,
                 const WrOptions& options) noexcept {
    if (!reserve(1)) return false;
    std::byte* wqe = next();
    put_ctrl(wqe, opcode, 1 + head_segments, imm_be, options);
    put_head<head_segments>(wqe, head);
    return commit(wqe, 1, 0, options);
  }

  // These two can run across the end of the ring: see send_burst_copy.hpp. All of this is inlined:
  // a call that is given `this` would force the whole burst out of registers.
  template <std::uint32_t head_segments, std::size_t extent>
  [[gnu::always_inline]] bool put_inline(std::uint32_t opcode, std::uint32_t imm_be, const void* head,
                                         std::span<const std::byte, extent> data,
                                         const WrOptions& options) noexcept;
  template <std::uint32_t head_segments>
  [[gnu::always_inline]] bool put_gather(std::uint32_t opcode, std::uint32_t imm_be, const void* head,
                                         std::span<const Sge> local, const WrOptions& options) noexcept;

  // Copies of what a request needs: the compiler keeps them in registers, which it could not do
  // with members of the queue, as a WQE's stores might alias those.
  SendQueue& sq_;
  std::byte* const wqes_;
  std::byte* const wr_ids_;
  const std::size_t mask_;  // of place()
  const std::uint32_t qpn_be_;
  std::uint32_t producer_;
  std::uint32_t room_ = 0;  // blocks until SendQueue::room_for is asked
  std::uint32_t posted_;
  std::uint32_t published_;  // of those, handed to the queue
  CtrlSegment* last_;
  std::uint64_t bytes_ = 0;
};

inline SendBurst SendQueue::burst() noexcept { return SendBurst(*this); }

}  // namespace pollen::queue

#include "pollen/queue/send_burst_copy.hpp"
