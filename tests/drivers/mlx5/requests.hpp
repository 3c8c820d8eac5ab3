// Work requests made by chance, and posted three ways: ibv_post_send, ibv_wr_*, and our burst.
#pragma once

#include <optional>
#include <random>

#include "twins.hpp"

namespace twins {

struct Request {
  queue::Opcode op = queue::Opcode::send;
  bool inline_data = false;
  bool signal = false;
  bool solicited = false;
  bool fence = false;
  std::uint64_t wr_id = 0;
  std::uint32_t imm = 0;  // or the rkey to invalidate
  std::vector<queue::Sge> list;
  queue::Remote remote{};
  std::uint64_t compare_add = 0;
  std::uint64_t swap = 0;

  std::uint32_t inline_bytes() const {
    std::uint32_t bytes = 0;
    for (const auto& sge : list) bytes += sge.bytes;
    return bytes;
  }
};

class Generator {
 public:
  // remote: where one-sided requests go; empty for anywhere at all.
  Generator(unsigned seed, std::span<const std::byte> memory, std::uint32_t lkey,
            const driver::QpConfig& limits, std::optional<queue::Remote> remote = {})
      : random_(seed), memory_(memory), lkey_(lkey), limits_(limits), remote_(remote) {}

  Request next() {
    using queue::Opcode;
    static constexpr Opcode rc[] = {Opcode::send,      Opcode::send_with_imm,  Opcode::send_with_inv,
                                    Opcode::write,     Opcode::write_with_imm, Opcode::read,
                                    Opcode::fetch_add, Opcode::cmp_swap};
    static constexpr Opcode ud[] = {Opcode::send, Opcode::send_with_imm};
    Request r;
    r.op = limits_.transport == driver::Transport::ud ? ud[below(2)] : rc[below(8)];
    const bool atomic = r.op == Opcode::fetch_add || r.op == Opcode::cmp_swap;
    const bool may_inline = !atomic && r.op != Opcode::read && r.op != Opcode::send_with_inv;
    r.inline_data = may_inline && below(2) == 0;
    r.signal = below(3) == 0;
    r.solicited = below(4) == 0;
    r.fence = below(5) == 0 && limits_.transport == driver::Transport::rc;
    r.wr_id = random_();
    r.imm = static_cast<std::uint32_t>(random_());
    r.remote = remote_.value_or(queue::Remote{random_(), static_cast<std::uint32_t>(random_())});
    if (remote_ && r.op == Opcode::send_with_inv) r.op = Opcode::send;  // nothing may be invalidated
    r.compare_add = random_();
    r.swap = random_();
    if (atomic) {
      r.list = {piece(8)};
    } else if (r.inline_data) {
      r.list = {piece(below(limits_.inline_bytes + 1))};
    } else {
      const std::uint32_t n = r.op == Opcode::send_with_inv ? 1 : below(limits_.send_sge + 1);
      for (std::uint32_t i = 0; i < n; ++i) r.list.push_back(piece(below(6) == 0 ? 0 : 1 + below(4000)));
      if (r.op == Opcode::send_with_inv) r.list[0].bytes = 1 + below(4000);
    }
    return r;
  }

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  queue::Sge piece(std::uint32_t bytes) { return {memory_.data() + below(4096), bytes, lkey_}; }

  std::mt19937_64 random_;
  std::span<const std::byte> memory_;
  std::uint32_t lkey_;
  driver::QpConfig limits_;
  std::optional<queue::Remote> remote_;
};

struct Destination {
  ibv_ah* ah = nullptr;  // UD
  std::uint32_t qpn = 0x123456;
  std::uint32_t qkey = 0x22222222;
  queue::Address address{};
};

inline ibv_wr_opcode to_ibv(queue::Opcode op) {
  switch (op) {
    case queue::Opcode::send_with_imm:
      return IBV_WR_SEND_WITH_IMM;
    case queue::Opcode::send_with_inv:
      return IBV_WR_SEND_WITH_INV;
    case queue::Opcode::write:
      return IBV_WR_RDMA_WRITE;
    case queue::Opcode::write_with_imm:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case queue::Opcode::read:
      return IBV_WR_RDMA_READ;
    case queue::Opcode::fetch_add:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case queue::Opcode::cmp_swap:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
    default:
      return IBV_WR_SEND;
  }
}

inline unsigned to_ibv_flags(const Request& r) {
  unsigned flags = 0;
  if (r.signal) flags |= IBV_SEND_SIGNALED;
  if (r.solicited) flags |= IBV_SEND_SOLICITED;
  if (r.fence) flags |= IBV_SEND_FENCE;
  if (r.inline_data) flags |= IBV_SEND_INLINE;
  return flags;
}

// As one chain, so with one doorbell. False: libmlx5 says that the queue is full.
inline bool post_send(ibv_qp* qp, std::span<const Request> requests, const Destination& to) {
  std::vector<ibv_send_wr> wrs(requests.size());
  std::vector<std::vector<ibv_sge>> lists(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    for (const auto& sge : r.list)
      lists[i].push_back({reinterpret_cast<std::uint64_t>(sge.address), sge.bytes, sge.lkey});
    ibv_send_wr& wr = wrs[i];
    wr.wr_id = r.wr_id;
    wr.next = i + 1 < requests.size() ? &wrs[i + 1] : nullptr;
    wr.sg_list = lists[i].data();
    wr.num_sge = static_cast<int>(lists[i].size());
    wr.opcode = to_ibv(r.op);
    wr.send_flags = to_ibv_flags(r);
    if (r.op == queue::Opcode::send_with_inv)
      wr.invalidate_rkey = r.imm;
    else
      wr.imm_data = big_endian(r.imm);
    if (to.ah != nullptr) {
      wr.wr.ud = {to.ah, to.qpn, to.qkey};
    } else if (r.op == queue::Opcode::fetch_add || r.op == queue::Opcode::cmp_swap) {
      wr.wr.atomic = {r.remote.address, r.compare_add, r.swap, r.remote.rkey};
    } else {
      wr.wr.rdma = {r.remote.address, r.remote.rkey};
    }
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, wrs.data(), &bad) == 0;
}

inline bool post_wr(ibv_qp* plain, std::span<const Request> requests, const Destination& to) {
  ibv_qp_ex* qp = ibv_qp_to_qp_ex(plain);
  ibv_wr_start(qp);
  for (const Request& r : requests) {
    qp->wr_id = r.wr_id;
    qp->wr_flags = to_ibv_flags(r);
    switch (r.op) {
      case queue::Opcode::send_with_imm:
        ibv_wr_send_imm(qp, big_endian(r.imm));
        break;
      case queue::Opcode::send_with_inv:
        ibv_wr_send_inv(qp, r.imm);
        break;
      case queue::Opcode::write:
        ibv_wr_rdma_write(qp, r.remote.rkey, r.remote.address);
        break;
      case queue::Opcode::write_with_imm:
        ibv_wr_rdma_write_imm(qp, r.remote.rkey, r.remote.address, big_endian(r.imm));
        break;
      case queue::Opcode::read:
        ibv_wr_rdma_read(qp, r.remote.rkey, r.remote.address);
        break;
      case queue::Opcode::fetch_add:
        ibv_wr_atomic_fetch_add(qp, r.remote.rkey, r.remote.address, r.compare_add);
        break;
      case queue::Opcode::cmp_swap:
        ibv_wr_atomic_cmp_swp(qp, r.remote.rkey, r.remote.address, r.compare_add, r.swap);
        break;
      default:
        ibv_wr_send(qp);
    }
    if (to.ah != nullptr) ibv_wr_set_ud_addr(qp, to.ah, to.qpn, to.qkey);
    if (r.inline_data) {
      ibv_wr_set_inline_data(qp, const_cast<void*>(r.list[0].address), r.list[0].bytes);
    } else {
      std::vector<ibv_sge> list;
      for (const auto& sge : r.list)
        list.push_back({reinterpret_cast<std::uint64_t>(sge.address), sge.bytes, sge.lkey});
      ibv_wr_set_sge_list(qp, list.size(), list.data());
    }
  }
  return ibv_wr_complete(qp) == 0;
}

inline bool post_ours(queue::Qp& qp, std::span<const Request> requests, const Destination& to) {
  using queue::Opcode;
  auto burst = qp.send_burst();
  for (const Request& r : requests) {
    const queue::WrOptions options{
        .wr_id = r.wr_id, .signal = r.signal, .solicited = r.solicited, .fence = r.fence};
    const std::span<const queue::Sge> list(r.list);
    const std::span<const std::byte> data =
        r.inline_data ? std::span(static_cast<const std::byte*>(r.list[0].address), r.list[0].bytes)
                      : std::span<const std::byte>();
    bool posted = false;
    if (to.ah != nullptr) {
      if (r.op == Opcode::send)
        posted = r.inline_data ? burst.send_inline_to(to.address, data, options)
                               : burst.send_to(to.address, list, options);
      else
        posted = r.inline_data ? burst.send_inline_to_with_imm(to.address, data, r.imm, options)
                               : burst.send_to_with_imm(to.address, list, r.imm, options);
    } else {
      switch (r.op) {
        case Opcode::send:
          posted = r.inline_data ? burst.send_inline(data, options) : burst.send(list, options);
          break;
        case Opcode::send_with_imm:
          posted = r.inline_data ? burst.send_inline_with_imm(data, r.imm, options)
                                 : burst.send_with_imm(list, r.imm, options);
          break;
        case Opcode::send_with_inv:
          posted = burst.send_with_inv(r.list[0], r.imm, options);
          break;
        case Opcode::write:
          posted = r.inline_data ? burst.write_inline(data, r.remote, options)
                                 : burst.write(list, r.remote, options);
          break;
        case Opcode::write_with_imm:
          posted = r.inline_data ? burst.write_inline_with_imm(data, r.remote, r.imm, options)
                                 : burst.write_with_imm(list, r.remote, r.imm, options);
          break;
        case Opcode::read:
          posted = burst.read(list, r.remote, options);
          break;
        case Opcode::fetch_add:
          posted = burst.fetch_add(r.list[0], r.remote, r.compare_add, options);
          break;
        case Opcode::cmp_swap:
          posted = burst.cmp_swap(r.list[0], r.remote, r.compare_add, r.swap, options);
          break;
        default:
          break;
      }
    }
    if (!posted) return false;
  }
  burst.ring();
  return true;
}

}  // namespace twins
