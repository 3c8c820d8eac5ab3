// What a worker does in a round: the data path of a bandwidth test, as an app of the worker's loop.
//
// The kind of the test and whether it validates are template parameters: the loop of each test has only
// what that test needs, and nothing is asked per message.
//
// Posting. Each turn a QP is filled up to the depth, as soon as there is room for a batch: of -l requests
// where that was given, each batch with a doorbell of its own; else of 16 (a quarter of a smaller depth)
// or more, whatever there is room for, with one doorbell.
//
// Thread rules: the worker's owner, but for Shared and Live. Errors: a failed request throws pollen::Error,
// unless the peer is known to be gone or the loop is ending.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "flow.hpp"
#include "pacer.hpp"
#include "pattern.hpp"

namespace pollen::bw {

enum class Kind : std::uint8_t { send, send_ud, write, write_imm, read };

template <Kind kind, bool validate>
class BwApp {
  static constexpr bool receives = kind == Kind::send || kind == Kind::send_ud || kind == Kind::write_imm;
  static constexpr std::uint64_t trailer_id = std::uint64_t{1} << 63;
  static constexpr std::uint64_t no_end = std::numeric_limits<std::uint64_t>::max();

 public:
  BwApp(const RoundConfig& config, Rendezvous& meeting, const Shared& shared, Live& live, SideOutcome& side,
        unsigned index)
      : config_(config),
        meeting_(meeting),
        shared_(shared),
        live_(live),
        side_(side),
        outcome_(side.lcores[index]),
        is_first_(index == 0),
        pacer_(config.messages_per_s, pace_burst(config)) {}
  BwApp(const BwApp&) = delete;
  BwApp& operator=(const BwApp&) = delete;

  void start(worker::Worker& worker) {
    lkey_ = worker.region().lkey();
    const std::uint64_t begin_ns = open_flows(worker, config_, meeting_, flows_, tx_depth_);
    inline_ = config_.activity.active && kind != Kind::read && config_.layout.size != 0 &&
              config_.layout.size <= flows_.front().qp->sq().ring().max_inline_bytes;
    const std::uint32_t list = config_.test.post_list;
    exact_list_ = list != 0;
    batch_ = exact_list_ ? std::min(list, tx_depth_) : std::clamp(tx_depth_ / 4, 1U, 16U);
    if (pacer_.active() && !exact_list_) batch_ = 1;
    repost_ = std::clamp(config_.layout.rx_depth / 4, 1U, 32U);
    log_.start(begin_ns);
    pacer_.start(begin_ns);
    if (!config_.activity.active) {
      live_.finished.store(true, std::memory_order_release);
      return;
    }
    const bool counted = config_.test.length == LengthKind::iterations;
    for (Flow& flow : flows_) flow.left = counted ? config_.test.amount : no_end;
    open_ = flows_.size();
    first_ns_ = worker.clock_ns();
    stop_ns_ =
        config_.test.length == LengthKind::seconds ? first_ns_ + config_.test.amount * 1'000'000'000 : no_end;
    sending_ = true;
  }

  unsigned poll(worker::Worker& worker) {
    if (!sending_) return 0;
    const std::uint64_t now_ns = worker.now_ns();
    if (open_ != 0) {
      if (now_ns >= stop_ns_ || shared_.stop_sending.load(std::memory_order_relaxed)) [[unlikely]]
        end_posting();
      unsigned work = 0;
      for (std::uint32_t i = 0; i < flows_.size(); ++i)
        if (flows_[i].left != 0) work += fill(worker, now_ns, i);
      return work;
    }
    if (completed_ == posted_) [[unlikely]]
      return finish(worker);
    return 0;
  }

  void on_sent(worker::Worker& worker, std::span<const queue::Completion> completions) {
    std::uint64_t count = 0;
    for (const queue::Completion& completion : completions) {
      if (!completion.ok()) [[unlikely]] {
        on_failure(worker, completion);
        continue;
      }
      if constexpr (validate) {
        if ((completion.wr_id & trailer_id) != 0) {
          --trailers_;
          continue;
        }
        if constexpr (kind == Kind::read) check_read(flows_[completion.wr_id], completion.wr_count);
      }
      count += completion.wr_count;
    }
    completed_ += count;
    live_.sent.set(completed_);
    log_.add(worker.now_ns(), count);
    if (open_ == 0 && completed_ == posted_ && last_ns_ == 0) last_ns_ = worker.clock_ns();
  }

  void on_receive(worker::Worker& worker, std::span<const queue::Completion> completions) requires receives {
    quiet_turns_ = 0;
    for (const queue::Completion& completion : completions) {
      if (!completion.ok()) [[unlikely]] {
        on_failure(worker, completion);
        continue;
      }
      const auto index = static_cast<std::uint32_t>(completion.wr_id);
      Flow& flow = flows_[index];
      if constexpr (validate) check_received(flow, completion);
      ++flow.received;
      if (++flow.to_post >= repost_) post_receives(config_, lkey_, index, flow);
    }
    received_ += completions.size();
    live_.received.set(received_);
  }

  void stop(worker::Worker& worker) {
    if (sending_) {  // it ends before its time
      end_posting();
      if (last_ns_ == 0) last_ns_ = worker.clock_ns();
      settle(worker);
    } else if (!config_.activity.active) {
      conclude(worker, side_);
    }
  }

  // What the peer has been told is complete has a completion here; it only may not have been polled yet.
  bool drained(worker::Worker& worker) {
    outcome_.received = received_;
    if (worker.in_flight() != 0 || ++quiet_turns_ < quiet_enough) return false;
    if constexpr (validate && kind == Kind::write)
      if (config_.activity.passive && !std::exchange(checked_written_, true))
        for (Flow& flow : flows_) check_written(config_, flow, outcome_);
    return true;
  }

 private:
  static constexpr unsigned quiet_enough = 64;

  static std::uint32_t pace_burst(const RoundConfig& config) {
    // A hundred microseconds' worth, for turns that take a while.
    const double burst = config.messages_per_s * 1e-4;
    return static_cast<std::uint32_t>(
        std::clamp(burst, static_cast<double>(std::max(1U, config.test.post_list)), 1e6));
  }

  void end_posting() noexcept {
    for (Flow& flow : flows_) flow.left = 0;
    open_ = 0;
  }

  unsigned fill(worker::Worker& worker, std::uint64_t now_ns, std::uint32_t index) {
    Flow& flow = flows_[index];
    const std::uint32_t under_way = flow.qp->sq().outstanding();
    std::uint64_t room = std::min<std::uint64_t>(tx_depth_ - std::min(under_way, tx_depth_), flow.left);
    if (pacer_.active()) [[unlikely]]
      room = std::min(room, pacer_.allowed(now_ns));
    if (room < batch_ && room < flow.left) return 0;

    const auto sample = worker.sample_post(*flow.qp);
    auto burst = flow.qp->send_burst();
    std::uint32_t done = 0;
    if (exact_list_) {
      while (room - done >= batch_ || (room == flow.left && done < room)) {
        const auto list = static_cast<std::uint32_t>(std::min<std::uint64_t>(batch_, room - done));
        const std::uint32_t posted = post(burst, flow, index, list);
        burst.ring();
        done += posted;
        if (posted < list) break;
      }
    } else {
      done = post(burst, flow, index, static_cast<std::uint32_t>(room));
    }
    burst.ring();

    flow.left -= done;
    posted_ += done;
    if (flow.left == 0) --open_;
    if (pacer_.active()) [[unlikely]]
      pacer_.sent(done);
    return done;
  }

  std::uint32_t post(queue::SendBurst& burst, Flow& flow, std::uint32_t index, std::uint32_t count) noexcept {
    return inline_ ? post_each<true>(burst, flow, index, count) : post_each<false>(burst, flow, index, count);
  }

  template <bool in_line>
  std::uint32_t post_each(queue::SendBurst& burst, Flow& flow, std::uint32_t index,
                          std::uint32_t count) noexcept {
    const std::size_t stride_bytes = config_.layout.stride_bytes;
    const std::uint32_t size = config_.layout.size;
    SlotRing source = flow.source;
    RemoteRing remote = flow.remote;
    std::uint32_t done = 0;
    for (; done < count; ++done) {
      std::byte* const slot = source.take(stride_bytes);
      const std::uint64_t sequence = flow.posted + done;
      if constexpr (validate && kind != Kind::read) fill_slot(flow, slot, sequence);
      const std::uint64_t address =
          kind == Kind::send || kind == Kind::send_ud ? 0 : remote.take(stride_bytes);
      if (!put<in_line>(burst, flow, {slot, size, lkey_}, {address, flow.rkey},
                        static_cast<std::uint32_t>(sequence), {.wr_id = index})) {
        // Neither slot was used; the burst has room for what was posted before.
        source.at = slot;
        remote.at = address;
        break;
      }
    }
    flow.source.at = source.at;
    flow.remote.at = remote.at;
    flow.posted += done;
    return done;
  }

  template <bool in_line>
  static bool put(queue::SendBurst& burst, const Flow& flow, const queue::Sge& local,
                  const queue::Remote& remote, [[maybe_unused]] std::uint32_t sequence,
                  const queue::WrOptions& options) noexcept {
    const std::span<const std::byte> data(static_cast<const std::byte*>(local.address), local.bytes);
    if constexpr (kind == Kind::send) {
      return in_line ? burst.send_inline(data, options) : burst.send(local, options);
    } else if constexpr (kind == Kind::send_ud) {
      // The receiver can't count datagrams that were lost: it is told which one this is.
      if constexpr (validate) return burst.send_to_with_imm(flow.to, local, sequence, options);
      return in_line ? burst.send_inline_to(flow.to, data, options) : burst.send_to(flow.to, local, options);
    } else if constexpr (kind == Kind::write) {
      return in_line ? burst.write_inline(data, remote, options) : burst.write(local, remote, options);
    } else if constexpr (kind == Kind::write_imm) {
      return in_line ? burst.write_inline_with_imm(data, remote, sequence, options)
                     : burst.write_with_imm(local, remote, sequence, options);
    } else {
      return burst.read(local, remote, options);
    }
  }

  void fill_slot(const Flow& flow, std::byte* slot, std::uint64_t sequence) const noexcept {
    fill_pattern({slot, config_.layout.size}, pattern_key(flow.my_key, sequence));
    if (config_.corrupt_message == sequence && is_first_ && &flow == flows_.data())
      slot[config_.layout.size / 2] ^= std::byte{1};
  }

  void check_read(Flow& flow, std::uint32_t count) {
    const std::uint64_t slots = flow.remote.slots(config_.layout.stride_bytes);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::byte* slot = flow.check.take(config_.layout.stride_bytes);
      check_message({slot, config_.layout.size}, flow.their_key, flow.completed++ % slots, flow.qp->qpn(),
                    outcome_);
    }
  }

  void check_received(Flow& flow, const queue::Completion& completion) {
    const std::byte* slot = flow.arrivals.take(config_.layout.stride_bytes);
    std::uint64_t sequence = flow.received;
    if constexpr (kind == Kind::send_ud) {
      slot += grh_bytes;
      sequence = completion.imm;
    }
    if constexpr (kind == Kind::write_imm)
      if (completion.imm != static_cast<std::uint32_t>(sequence) && outcome_.damaged++ == 0)
        outcome_.first_damage = fmt::format("message {} of QP {} came with the immediate of message {}",
                                            sequence, flow.qp->qpn(), completion.imm);
    check_message({slot, config_.layout.size}, flow.their_key, sequence, flow.qp->qpn(), outcome_);
  }

  void on_failure(worker::Worker& worker, const queue::Completion& completion) {
    if (worker.stopping() || shared_.abandoned.load(std::memory_order_relaxed)) return;
    fail(worker, completion);
  }

  // All is sent and complete.
  unsigned finish(worker::Worker& worker) {
    if constexpr (validate && kind == Kind::write) {
      if (!trailers_sent_) {
        for (Flow& flow : flows_) send_trailer(flow);
        trailers_sent_ = true;
        return 1;
      }
      if (trailers_ != 0) return 0;
    }
    settle(worker);
    live_.finished.store(true, std::memory_order_release);
    return 1;
  }

  void send_trailer(Flow& flow) {
    std::memcpy(flow.trailer_source, &flow.posted, sizeof flow.posted);
    auto burst = flow.qp->send_burst();
    trailers_ += burst.write(queue::Sge{flow.trailer_source, trailer_bytes, lkey_},
                             {flow.trailer_address, flow.rkey}, {.wr_id = trailer_id, .signal = true});
  }

  void settle(worker::Worker& worker) {
    sending_ = false;
    outcome_.sent = completed_;
    outcome_.duration_ns = posted_ == 0 ? 0 : last_ns_ - first_ns_;
    outcome_.windows = log_.series(last_ns_);
    conclude(worker, side_);
  }

  // Hot.
  std::vector<Flow> flows_;
  std::uint32_t lkey_ = 0;
  std::uint32_t tx_depth_ = 0;
  std::uint32_t batch_ = 1;
  std::uint32_t repost_ = 1;
  bool sending_ = false;
  bool inline_ = false;
  bool exact_list_ = false;
  bool trailers_sent_ = false;
  std::size_t open_ = 0;  // flows that have something to post
  std::uint64_t posted_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t stop_ns_ = no_end;
  std::uint64_t first_ns_ = 0;
  std::uint64_t last_ns_ = 0;
  unsigned quiet_turns_ = 0;
  unsigned trailers_ = 0;
  bool checked_written_ = false;

  const RoundConfig& config_;
  Rendezvous& meeting_;
  const Shared& shared_;
  Live& live_;
  SideOutcome& side_;
  LcoreOutcome& outcome_;
  const bool is_first_;
  Pacer pacer_;
  WindowLog log_;
};

}  // namespace pollen::bw
