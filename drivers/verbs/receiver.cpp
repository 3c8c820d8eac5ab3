#include "pollen/drivers/verbs/receiver.hpp"

#include <algorithm>

#include "pollen/drivers/soft/wqe.hpp"
#include "pollen/drivers/verbs/status.hpp"

namespace pollen::verbs {

namespace {

std::uint8_t cqe_opcode(const ibv_wc& completion) noexcept {
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) return MLX5_CQE_RESP_WR_IMM;
  if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) return MLX5_CQE_RESP_SEND_IMM;
  if ((completion.wc_flags & IBV_WC_WITH_INV) != 0) return MLX5_CQE_RESP_SEND_INV;
  return MLX5_CQE_RESP_SEND;
}

}  // namespace

void Receiver::reset(std::uint64_t wr_tag) noexcept {
  setup_.wr_tag = wr_tag;
  published_ = posted_ = completed_ = 0;
  started_ = failed_ = false;
}

bool Receiver::advance() noexcept {
  if (ring_.entries == 0 || !started_) return false;
  const std::uint32_t record = big_endian(__atomic_load_n(ring_.record, __ATOMIC_ACQUIRE));
  published_ += static_cast<std::uint16_t>(record - published_);
  if (published_ == posted_) return false;
  // A record that claims more buffers than the ring holds is nonsense.
  if (published_ - completed_ > ring_.entries) published_ = completed_ + ring_.entries;
  bool did = false;
  while (published_ != posted_ && !failed_ && post_chain()) did = true;
  if (failed_ && posted_ == completed_) {
    flush();
    did = true;
  }
  return did;
}

bool Receiver::post_chain() noexcept {
  Chain& chain = setup_.chain;
  chain.clear();
  const std::uint32_t count =
      std::min({published_ - posted_, setup_.provider_wrs - (posted_ - completed_), chain_requests});
  for (; chain.requests < count && chain.has_room(); ++chain.requests) {
    ibv_recv_wr& request = chain.receives[chain.requests];
    const std::uint32_t sges = chain.sges_used;
    const std::byte* segment =
        ring_.wqes + std::size_t{(posted_ + chain.requests) & (ring_.entries - 1)} * ring_.stride_bytes;
    for (std::uint32_t at = 0; at < ring_.stride_bytes; at += queue::segment_bytes) {
      const soft::DataRef data = soft::read_data_segment(segment + at);
      if (data.lkey == queue::invalid_lkey) break;
      if (data.bytes != 0) chain.add_sge(data.address, data.bytes, data.lkey);
    }
    request = {.wr_id = setup_.wr_tag,
               .next = &chain.receives[chain.requests + 1],
               .sg_list = &chain.sges[sges],
               .num_sge = static_cast<int>(chain.sges_used - sges)};
  }
  if (chain.requests == 0) return false;
  chain.receives[chain.requests - 1].next = nullptr;
  ibv_recv_wr* bad = nullptr;
  if (ibv_post_recv(setup_.qp, chain.receives.data(), &bad) == 0) [[likely]] {
    posted_ += chain.requests;
    return true;
  }
  posted_ += static_cast<std::uint32_t>(bad - chain.receives.data());
  failed_ = true;
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(setup_.qp, &error, IBV_QP_STATE);
  return true;
}

void Receiver::flush() noexcept {
  for (; completed_ != published_; ++completed_)
    setup_.cq.push({.qpn = setup_.qpn,
                    .wqe_counter = static_cast<std::uint16_t>(completed_),
                    .opcode = MLX5_CQE_RESP_ERR,
                    .syndrome = static_cast<std::uint8_t>(queue::Status::flushed)});
  posted_ = completed_;
}

void Receiver::complete(const ibv_wc& completion) noexcept {
  if (completed_ == posted_) return;  // of an earlier life of the QP
  CqeFields fields{.qpn = setup_.qpn, .wqe_counter = static_cast<std::uint16_t>(completed_)};
  ++completed_;
  if (completion.status == IBV_WC_SUCCESS) {
    fields.opcode = cqe_opcode(completion);
    fields.byte_len = completion.byte_len;
    fields.imm = fields.opcode == MLX5_CQE_RESP_SEND_INV ? completion.invalidated_rkey
                                                         : big_endian(completion.imm_data);
    fields.src_qpn = completion.src_qp;
    fields.grh = (completion.wc_flags & IBV_WC_GRH) != 0;
  } else {
    fields.opcode = MLX5_CQE_RESP_ERR;
    fields.syndrome = static_cast<std::uint8_t>(to_syndrome(completion.status));
    fields.vendor_syndrome = static_cast<std::uint8_t>(completion.vendor_err);
    failed_ = true;
  }
  setup_.cq.push(fields);
}

}  // namespace pollen::verbs
