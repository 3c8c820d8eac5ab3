#include "pollen/queue/completion_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "pollen/base/error.hpp"
#include "pollen/queue/recv_queue.hpp"
#include "pollen/queue/send_queue.hpp"

namespace pollen::queue {

namespace {

constexpr std::uint32_t qpn_mask = 0xffffff;

// Fibonacci hashing: QP numbers are dense in their low or in their middle bits.
std::size_t home(std::uint32_t qpn, std::size_t size) noexcept {
  return (qpn * 2654435769U >> 8) & (size - 1);
}

// Of a send: how much came back.
constexpr bool has_byte_len(Opcode op) noexcept {
  return op == Opcode::read || op == Opcode::cmp_swap || op == Opcode::fetch_add;
}

std::uint32_t cqe_last_word(const Cqe& cqe) noexcept {
  std::uint32_t word;
  std::memcpy(&word, reinterpret_cast<const std::byte*>(&cqe) + cqe_bytes - sizeof word, sizeof word);
  return big_endian(word);
}

// What a successful receive's CQE says besides its opcode.
[[gnu::always_inline]] inline void put_received(const Cqe& cqe, Completion& out) noexcept {
  const std::uint32_t flags_rqpn = big_endian(cqe.flags_rqpn);
  out.byte_len = big_endian(cqe.byte_cnt);
  out.imm = big_endian(cqe.imm_inval_pkey);
  out.src_qpn = flags_rqpn & qpn_mask;
  out.grh_present = (flags_rqpn >> 28 & 3) != 0;
  out.solicited = (cqe.op_own & 2) != 0;
}

// take_sends() writes the last eight bytes at once.
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(Completion) == 32 && offsetof(Completion, wr_count) == 24 &&
              offsetof(Completion, status) == 26 && offsetof(Completion, opcode) == 27);

}  // namespace

CompletionQueue::CompletionQueue(const CqRing& ring)
    : ring_(ring), mask_(ring.entries - 1), free_slots_(ring.entries), table_(16) {
  assert((ring.entries & mask_) == 0);
}

void CompletionQueue::attach(std::uint32_t qpn, SendQueue* sq, RecvQueue* rq) {
  assert(qpn != 0 && find(qpn) == nullptr);
  // One slot stays aside for the NOP with which a send queue closes its tail.
  if (sq != nullptr) {
    if (free_slots_ < 2)
      throw Error(ENOSPC, {.attempted = fmt::format("attach QP {} to a completion queue", qpn),
                           .why = fmt::format("its {} entries are all spoken for", ring_.entries),
                           .remedy = "Create the completion queue with more entries"});
    --free_slots_;
  }
  if ((attached_ + 1) * 2 > table_.size()) {
    std::vector<Entry> old(table_.size() * 2);
    old.swap(table_);
    for (const Entry& entry : old)
      if (entry.qpn != 0) {
        std::size_t at = home(entry.qpn, table_.size());
        while (table_[at].qpn != 0) at = (at + 1) & (table_.size() - 1);
        table_[at] = entry;
      }
  }
  std::size_t at = home(qpn, table_.size());
  while (table_[at].qpn != 0) at = (at + 1) & (table_.size() - 1);
  table_[at] = {qpn, sq, rq};
  ++attached_;
}

void CompletionQueue::detach(std::uint32_t qpn) noexcept {
  Entry* entry = find(qpn);
  if (entry == nullptr) return;
  if (entry->sq != nullptr) free_slots_ += 1 + entry->sq->outstanding();
  if (entry->rq != nullptr) free_slots_ += entry->rq->outstanding();
  recent_ = {};
  recent_sop_qpn_ = 0;
  --attached_;
  // Closes the gap: entries behind it that hashed to before it move up.
  const std::size_t size = table_.size();
  auto gap = static_cast<std::size_t>(entry - table_.data());
  table_[gap] = {};
  for (std::size_t at = (gap + 1) & (size - 1); table_[at].qpn != 0; at = (at + 1) & (size - 1)) {
    const std::size_t wanted = home(table_[at].qpn, size);
    if (((at - wanted) & (size - 1)) < ((at - gap) & (size - 1))) continue;
    table_[gap] = table_[at];
    table_[at] = {};
    gap = at;
  }
}

CompletionQueue::Entry* CompletionQueue::find(std::uint32_t qpn) noexcept {
  const std::size_t size = table_.size();
  for (std::size_t at = home(qpn, size); table_[at].qpn != 0; at = (at + 1) & (size - 1))
    if (table_[at].qpn == qpn) return &table_[at];
  return nullptr;
}

bool CompletionQueue::ready_at(std::uint32_t index) const noexcept {
  const std::uint8_t op_own = __atomic_load_n(&cqe_at(index)->op_own, __ATOMIC_RELAXED);
  return (op_own & cqe_owner) == owner_at(index) && (op_own >> 4) != MLX5_CQE_INVALID;
}

[[gnu::always_inline]] inline std::uint32_t CompletionQueue::take_sends(Completion* out,
                                                                        std::uint32_t max) noexcept {
  SendQueue& sq = *recent_.sq;
  const std::uint64_t* const wr_ids = sq.wr_ids_.get();
  const SendQueue::Mark* const marks = sq.marks_.get();
  const std::uint32_t mask = sq.mask_;
  const std::uint32_t qpn = recent_.qpn;
  const std::uint32_t sop_qpn = recent_sop_qpn_;
  const std::uint32_t opcode = big_endian(sop_qpn) >> 24 << 24;
  const bool sized = has_byte_len(static_cast<Opcode>(opcode >> 24));
  const std::uint8_t fresh_send = MLX5_CQE_REQ << 4 | owner_at(consumer_);
  const Cqe* const begin = cqe_at(consumer_);
  const Cqe* const end = begin + std::min(max, ring_.entries - (consumer_ & mask_));
  const SendQueue::Mark* mark = nullptr;
  std::uint32_t retired = sq.retired_;
  const Cqe* cqe = begin;
  for (; cqe != end; ++cqe, ++out) {
    if (__atomic_load_n(&cqe->op_own, __ATOMIC_RELAXED) != fresh_send) break;
    owner_before_cqe();
    if (cqe->sop_drop_qpn != sop_qpn) break;
    // wqe_counter is the upper half of the CQE's last word.
    const std::size_t at = cqe_last_word(*cqe) >> 16 & mask;
    mark = &marks[at];
    const std::uint32_t sequence = mark->sequence;
    out->wr_id = wr_ids[at];
    out->byte_len = sized ? big_endian(cqe->byte_cnt) : 0;
    out->qpn = qpn;
    // wr_count, status 0, opcode, and the rest 0: one store.
    store_u64(reinterpret_cast<std::byte*>(&out->wr_count), opcode | (sequence - retired));
    retired = sequence;
  }
  const auto count = static_cast<std::uint32_t>(cqe - begin);
  if (count != 0) {
    consumer_ += count;
    free_slots_ += sq.retire(*mark);
    if (sq.tail_is_unsignalled()) sq.close_tail();
  }
  return count;
}

[[gnu::always_inline]] inline std::uint32_t CompletionQueue::take_receives(Completion* out,
                                                                           std::uint32_t max) noexcept {
  RecvQueue& rq = *recent_.rq;
  const std::uint64_t* const wr_ids = rq.wr_ids_.get();
  const std::uint32_t mask = rq.mask_;
  const std::uint32_t qpn = recent_.qpn;
  const std::uint32_t qpn_be = big_endian(qpn);
  const std::uint8_t owner = owner_at(consumer_);
  const Cqe* const begin = cqe_at(consumer_);
  const std::uint8_t opcode = begin->op_own >> 4;
  if (opcode < MLX5_CQE_RESP_WR_IMM || opcode > MLX5_CQE_RESP_SEND_INV) return 0;
  // All but the solicited bit.
  const auto fresh = static_cast<std::uint8_t>(opcode << 4 | owner);
  const std::uint32_t most = std::min({max, ring_.entries - (consumer_ & mask_), rq.outstanding()});
  const std::uint64_t outcome = 1U | (0x80U | opcode) << 24;  // wr_count, status, opcode, and the rest
  std::uint32_t tail = rq.tail_;
  const Cqe* cqe = begin;
  for (const Cqe* const end = begin + most; cqe != end; ++cqe, ++out) {
    if ((__atomic_load_n(&cqe->op_own, __ATOMIC_RELAXED) & ~2) != fresh) break;
    owner_before_cqe();
    if (cqe->sop_drop_qpn != qpn_be) break;
    out->wr_id = wr_ids[tail++ & mask];
    out->qpn = qpn;
    store_u64(reinterpret_cast<std::byte*>(&out->wr_count), outcome);
    put_received(*cqe, *out);
  }
  const auto count = static_cast<std::uint32_t>(cqe - begin);
  rq.tail_ = tail;
  consumer_ += count;
  free_slots_ += count;
  return count;
}

std::uint32_t CompletionQueue::poll(Completion* out, std::uint32_t max) noexcept {
  std::uint32_t count = 0;
  const std::uint32_t first = consumer_;
  while (count < max) {
    // Most CQEs continue a run: sends or receives that succeeded, of one QP, on one lap of the ring.
    if (recent_sop_qpn_ != 0) count += take_sends(out + count, max - count);
    if (count == max || !ready()) break;
    if (recent_.rq != nullptr) {
      const std::uint32_t received = take_receives(out + count, max - count);
      count += received;
      if (received != 0) continue;
    }
    owner_before_cqe();
    const Cqe& cqe = *cqe_at(consumer_++);
    count += take(cqe, out[count]);
  }
  if (consumer_ != first) {
    cqes_before_consumer_index();
    store_record(ring_.record, consumer_ & qpn_mask);
  }
  return count;
}

bool CompletionQueue::take(const Cqe& cqe, Completion& out) noexcept {
  const std::uint32_t sop_qpn = big_endian(cqe.sop_drop_qpn);
  const std::uint32_t qpn = sop_qpn & qpn_mask;
  if (recent_.qpn != qpn) {
    const Entry* entry = find(qpn);
    if (entry == nullptr) return false;  // of a QP that is gone: its slots were given back then
    recent_ = *entry;
    recent_sop_qpn_ = 0;
  }
  out = {};
  out.qpn = qpn;
  const auto opcode = static_cast<std::uint8_t>(cqe.op_own >> 4);
  if (opcode != MLX5_CQE_REQ && opcode != MLX5_CQE_REQ_ERR) return take_receive(cqe, opcode, out);
  if (recent_.sq == nullptr) return false;

  SendQueue& sq = *recent_.sq;
  const std::uint16_t counter = big_endian(cqe.wqe_counter);
  out.wr_id = sq.wr_ids_[counter & sq.mask_];
  out.opcode = static_cast<Opcode>(sop_qpn >> 24);
  std::uint32_t retired = 0;
  if (opcode == MLX5_CQE_REQ) {
    if (has_byte_len(out.opcode)) out.byte_len = big_endian(cqe.byte_cnt);
    retired = sq.retire(sq.marks_[counter & sq.mask_]);
    recent_sop_qpn_ = cqe.sop_drop_qpn;
  } else {
    const auto& error = reinterpret_cast<const ErrorCqe&>(cqe);
    out.status = static_cast<Status>(error.syndrome);
    out.vendor_syndrome = error.vendor_err_synd;
    retired = sq.retire_failed(counter);
  }
  free_slots_ += retired;
  out.wr_count = static_cast<std::uint16_t>(retired);
  if (opcode == MLX5_CQE_REQ && sq.tail_is_unsignalled()) sq.close_tail();
  return retired != 0;
}

bool CompletionQueue::take_receive(const Cqe& cqe, std::uint8_t opcode, Completion& out) noexcept {
  if (recent_.rq == nullptr) return false;
  RecvQueue& rq = *recent_.rq;
  if (rq.outstanding() == 0) return false;  // a device that completes what was never posted
  out.wr_id = rq.wr_ids_[rq.tail_ & rq.mask_];
  ++rq.tail_;
  ++free_slots_;
  out.wr_count = 1;
  out.opcode = static_cast<Opcode>(0x80 | opcode);
  if (opcode == MLX5_CQE_RESP_ERR) {
    const auto& error = reinterpret_cast<const ErrorCqe&>(cqe);
    out.status = static_cast<Status>(error.syndrome);
    out.vendor_syndrome = error.vendor_err_synd;
    return true;
  }
  put_received(cqe, out);
  return true;
}

std::uint32_t CompletionQueue::purge(std::uint32_t qpn) noexcept {
  const auto is_its = [qpn](const Cqe& cqe) { return (big_endian(cqe.sop_drop_qpn) & qpn_mask) == qpn; };
  std::uint32_t count = 0;
  std::uint32_t end = consumer_;
  for (; end - consumer_ < ring_.entries && ready_at(end); ++end) {
    owner_before_cqe();
    const Cqe& cqe = *cqe_at(end);
    if (!is_its(cqe)) continue;
    Completion ignored;
    take(cqe, ignored);
    ++count;
  }
  if (count == 0) return 0;
  // The others move up to the newest, and the entries that this empties go back to the device at
  // once: their slots are free from now on, so it may need them.
  std::uint32_t to = end;
  for (std::uint32_t from = end; from != consumer_;) {
    const Cqe& cqe = *cqe_at(--from);
    if (is_its(cqe)) continue;
    if (--to == from) continue;
    Cqe& moved = *cqe_at(to);
    moved = cqe;
    moved.op_own = static_cast<std::uint8_t>((cqe.op_own & ~cqe_owner) | owner_at(to));
  }
  consumer_ = to;
  cqes_before_consumer_index();
  store_record(ring_.record, consumer_ & qpn_mask);
  return count;
}

}  // namespace pollen::queue
