// Rings driven by hand: WQEs written segment by segment, CQEs read as bytes. For what the queues of
// runtime/queue would never post, and without the accounting that keeps a completion queue whole.
#pragma once

#include <array>
#include <optional>
#include <utility>

#include "rig.hpp"

namespace rig {

struct RawWqe {
  explicit RawWqe(std::uint8_t opcode, std::uint8_t flags = queue::ctrl_signal, std::uint32_t imm = 0) {
    queue::CtrlSegment ctrl{};
    ctrl.opmod_idx_opcode = big_endian(std::uint32_t{opcode});
    ctrl.fm_ce_se = flags;
    ctrl.imm = big_endian(imm);
    add(ctrl);
  }
  template <typename Segment>
  RawWqe& add(const Segment& segment) {
    static_assert(sizeof segment == queue::segment_bytes);
    segments.emplace_back();
    std::memcpy(segments.back().data(), &segment, sizeof segment);
    return *this;
  }
  RawWqe& remote(std::uint64_t address, std::uint32_t rkey) {
    queue::RemoteSegment segment{};
    segment.raddr = big_endian(address);
    segment.rkey = big_endian(rkey);
    return add(segment);
  }
  RawWqe& operands(std::uint64_t swap_add, std::uint64_t compare) {
    queue::AtomicSegment segment{};
    segment.swap_add = big_endian(swap_add);
    segment.compare = big_endian(compare);
    return add(segment);
  }
  RawWqe& data(std::uint32_t byte_count, std::uint32_t lkey, const void* address) {
    queue::DataSegment segment{};
    segment.byte_count = big_endian(byte_count);
    segment.lkey = big_endian(lkey);
    segment.addr = big_endian(reinterpret_cast<std::uint64_t>(address));
    return add(segment);
  }
  RawWqe& data(const Sge& sge) { return data(sge.bytes, sge.lkey, sge.address); }
  // The first bytes of an inline segment: 12 of data.
  RawWqe& inline_head(std::uint32_t byte_count) { return data(byte_count | queue::inline_flag, 0, nullptr); }
  RawWqe& nothing() { return data(0, 0, nullptr); }

  std::vector<std::array<std::byte, queue::segment_bytes>> segments;
  std::optional<std::uint32_t> says_segments = {};  // in place of how many there are
  std::optional<std::uint32_t> says_qpn = {};
};

class RawQp {
 public:
  RawQp(End& end, driver::Cq& send_cq, driver::Cq& recv_cq, const QpOptions& options)
      : qp_(end.port->create_qp(*end.pd, send_cq, recv_cq, options.config)) {}
  explicit RawQp(std::unique_ptr<driver::Qp> qp) : qp_(std::move(qp)) {}

  driver::Qp& control() { return *qp_; }
  std::uint32_t qpn() const { return qp_->qpn(); }
  std::uint32_t produced() const { return producer_; }  // blocks

  // Writes the WQE; returns the index of its first block.
  std::uint16_t post(const RawWqe& wqe) {
    const queue::SendRing& ring = qp_->send_ring();
    const auto count = static_cast<std::uint32_t>(wqe.segments.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t at =
          (producer_ * queue::segments_per_block + i) % (ring.blocks * queue::segments_per_block);
      std::memcpy(ring.wqes + at * queue::segment_bytes, wqe.segments[i].data(), queue::segment_bytes);
    }
    auto* ctrl =
        reinterpret_cast<queue::CtrlSegment*>(ring.wqes + producer_ % ring.blocks * queue::block_bytes);
    ctrl->opmod_idx_opcode = big_endian(big_endian(ctrl->opmod_idx_opcode) | (producer_ & 0xffff) << 8);
    ctrl->qpn_ds = big_endian(wqe.says_qpn.value_or(qpn()) << 8 | wqe.says_segments.value_or(count));
    const auto index = static_cast<std::uint16_t>(producer_);
    producer_ += queue::blocks_of_segments(count);
    return index;
  }
  void ring() { ring_to(producer_); }
  // A doorbell for more, or less, than was written.
  void ring_to(std::uint32_t producer) {
    const queue::SendRing& ring = qp_->send_ring();
    queue::store_record(ring.record, producer & 0xffff);
    ring.hook.function(ring.hook.context, reinterpret_cast<const queue::CtrlSegment*>(ring.wqes));
  }
  std::uint16_t post_and_ring(const RawWqe& wqe) {
    const std::uint16_t index = post(wqe);
    ring();
    return index;
  }
  // To the reset state; both rings start again at their first entry.
  void reset() {
    qp_->to_error();
    qp_->to_reset();
    producer_ = 0;
    received_ = 0;
  }
  void post_receive(const Sge& buffer) {
    const queue::RecvRing& ring = qp_->recv_ring();
    std::byte* at = ring.wqes + received_ % ring.entries * ring.stride_bytes;
    queue::put_receive_segment(at, buffer.bytes, buffer.lkey, buffer.address);
    if (ring.stride_bytes > queue::segment_bytes)
      queue::put_receive_segment(at + queue::segment_bytes, 0, queue::invalid_lkey, nullptr);
    queue::store_record(ring.record, ++received_ & 0xffff);
  }

 private:
  std::unique_ptr<driver::Qp> qp_;
  std::uint32_t producer_ = 0;
  std::uint32_t received_ = 0;
};

struct RawCqe {
  std::uint8_t opcode;  // MLX5_CQE_…
  std::uint32_t qpn;
  std::uint16_t counter;
  std::uint8_t syndrome;  // of error CQEs
};

class RawCq {
 public:
  explicit RawCq(std::unique_ptr<driver::Cq> cq) : cq_(std::move(cq)) {}

  driver::Cq& control() { return *cq_; }

  // The next CQE. Tells the device of it only in acknowledge().
  std::optional<RawCqe> next() {
    const queue::CqRing& ring = cq_->ring();
    const auto* cqe =
        reinterpret_cast<const queue::Cqe*>(ring.cqes + consumer_ % ring.entries * queue::cqe_bytes);
    const std::uint8_t op_own = __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE);
    const std::uint8_t owner = (consumer_ & ring.entries) != 0 ? queue::cqe_owner : 0;
    if (op_own >> 4 == MLX5_CQE_INVALID || (op_own & queue::cqe_owner) != owner) return std::nullopt;
    ++consumer_;
    const std::uint32_t sop_qpn = big_endian(cqe->sop_drop_qpn);
    return RawCqe{static_cast<std::uint8_t>(op_own >> 4), sop_qpn & 0xffffff, big_endian(cqe->wqe_counter),
                  reinterpret_cast<const queue::ErrorCqe*>(cqe)->syndrome};
  }
  void acknowledge() { queue::store_record(cq_->ring().record, consumer_ & 0xffffff); }

 private:
  std::unique_ptr<driver::Cq> cq_;
  std::uint32_t consumer_ = 0;
};

// Between QPs of whichever kind, both to rts.
inline void connect_raw(driver::Qp& a, const End& a_end, driver::Qp& b, const End& b_end,
                        const QpOptions& options) {
  const auto one = [&](driver::Qp& self, const End& peer, const driver::Qp& other) {
    driver::RtrConfig rtr = options.rtr;
    rtr.path.remote_gid = peer.gid;
    rtr.path.local_gid_index = 1;
    rtr.remote_qpn = other.qpn();
    rtr.remote_psn = 0xfffff0;
    driver::RtsConfig rts = options.rts;
    rts.local_psn = 0xfffff0;
    self.to_init(options.init);
    self.to_rtr(rtr);
    self.to_rts(rts);
  };
  one(a, b_end, b);
  one(b, a_end, a);
}

inline std::vector<driver::Event> events_of(End& end) {
  std::vector<driver::Event> all;
  while (auto event = end.port->next_event()) all.push_back(std::move(*event));
  return all;
}

}  // namespace rig
