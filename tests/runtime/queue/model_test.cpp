// Random bursts, devices and polls against a model that knows what must come out.
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "counters_at.hpp"
#include "memory_device.hpp"

using namespace memory_device;

namespace {

std::byte buffer[4096];

struct Posted {
  std::uint64_t wr_id;
  Opcode opcode;
  bool signal;
};

struct End {
  End(std::uint32_t qpn, std::uint32_t blocks, std::uint32_t first, CompletionQueue& cq,
      std::uint32_t signal_every)
      : memory({.blocks = blocks, .qpn = qpn, .first = first}), sq(memory.ring(), cq, signal_every) {}

  SendMemory memory;
  SendQueue sq;
  std::deque<Posted> pending;  // in order; retired from the front
  std::deque<Status> errors;   // that the device reported and poll has not told yet
  std::uint64_t next_wr_id = 0;
  std::uint64_t retired = 0;
  bool device_failed = false;
};

struct Scale {
  std::uint32_t qps;
  std::uint32_t blocks;
  std::uint32_t cq_entries;
  std::uint32_t signal_every;
  std::uint32_t steps;
  std::uint32_t first = 0;  // of all free-running counters
  double failures = 0;
};

class Model {
 public:
  Model(const Scale& scale, std::uint64_t seed)
      : scale_(scale), random_(seed), cq_memory_(scale.cq_entries, scale.first), cq_(cq_memory_.ring()) {
    if (scale.first != 0) counters_at::set(cq_, scale.first);
    for (std::uint32_t i = 0; i < scale.qps; ++i) {
      const std::uint32_t qpn = 0x100 + i * 7;
      ends_.push_back(std::make_unique<End>(qpn, scale.blocks, scale.first, cq_, scale.signal_every));
      if (scale.first != 0) counters_at::set(ends_.back()->sq, scale.first, scale.first);
      cq_.attach(qpn, &ends_.back()->sq, nullptr);
      by_qpn_[qpn] = ends_.back().get();
    }
  }

  void run() {
    for (std::uint32_t step = 0; step < scale_.steps; ++step) {
      End& end = *ends_[below(scale_.qps)];
      switch (below(4)) {
        case 0:
          post(end);
          break;
        case 1:
          device(end, 1 + below(2 * scale_.blocks));
          break;
        case 2:
          poll(1 + below(24));
          break;
        default:
          ends_[below(scale_.qps)]->sq.ring_doorbell();
          break;
      }
      check();
    }
    finish();
  }

  std::uint64_t posted() const { return posted_; }
  std::uint64_t failed_queues() const { return failed_queues_; }

 private:
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  void post(End& end) {
    const std::uint32_t wanted = 1 + below(40);
    SendBurst burst = end.sq.burst();
    std::uint32_t count = 0;
    while (count < wanted) {
      const WrOptions options{
          .wr_id = end.next_wr_id, .signal = below(12) == 0, .solicited = false, .fence = false};
      Opcode opcode = Opcode::nop;
      bool done = false;
      switch (below(6)) {
        case 0:
          done = burst.nop(options);
          break;
        case 1:
          opcode = Opcode::send;
          done = burst.send({buffer, below(3) * 8, 1}, options);
          break;
        case 2:
          opcode = Opcode::send;
          done = burst.send_inline(std::span(buffer).first(below(221)), options);
          break;
        case 3:
          opcode = Opcode::write;
          done = burst.write_inline(std::span(buffer).first(below(221)), {1, 2}, options);
          break;
        case 4: {
          opcode = Opcode::read;
          const Sge list[8] = {{buffer, 1, 1}, {buffer, 2, 1}, {buffer, below(2), 1}, {buffer, 3, 1},
                               {buffer, 4, 1}, {buffer, 5, 1}, {buffer, 6, 1},        {buffer, 7, 1}};
          done = burst.read(std::span(list).first(below(9)), {1, 2}, options);
          break;
        }
        default:
          opcode = Opcode::send;
          done = burst.send_to(Address{}, {buffer, below(2) * 8, 1}, options);
          break;
      }
      if (!done) break;
      end.pending.push_back({end.next_wr_id++, opcode, options.signal});
      ++count;
    }
    if (end.sq.failed()) REQUIRE(count == 0);
    posted_ += count;
    REQUIRE(burst.size() == count);
    REQUIRE((below(4) == 0 ? burst.defer() : burst.ring()) == count);
  }

  void device(End& end, std::uint32_t count) {
    for (; count != 0; --count) {
      const auto wqe = end.memory.take();
      if (!wqe) return;
      const bool fails = !end.device_failed && chance(scale_.failures);
      if (end.device_failed || fails) {
        const Status status = fails ? Status::remote_access_error : Status::flushed;
        cq_memory_.put_send_error(wqe->opcode, end.memory.qpn(), wqe->index, status);
        failed_queues_ += fails;
        end.device_failed = true;
      } else if (wqe->signalled()) {
        cq_memory_.put_send(wqe->opcode, end.memory.qpn(), wqe->index);
      }
    }
  }

  void poll(std::uint32_t max) {
    Completion out[24];
    const std::uint32_t count = cq_.poll(out, max);
    REQUIRE(count <= max);
    for (std::uint32_t i = 0; i < count; ++i) {
      const Completion& completion = out[i];
      REQUIRE(by_qpn_.contains(completion.qpn));
      End& end = *by_qpn_[completion.qpn];
      REQUIRE(completion.wr_count >= 1);
      REQUIRE(completion.wr_count <= end.pending.size());
      for (std::uint32_t n = 1; n < completion.wr_count; ++n) {
        // A caller's signal is a completion of its own, unless a failure comes first.
        REQUIRE((!end.pending.front().signal || !completion.ok()) == true);
        end.pending.pop_front();
      }
      REQUIRE(completion.wr_id == end.pending.front().wr_id);
      if (completion.opcode != Opcode::nop) REQUIRE(completion.opcode == end.pending.front().opcode);
      REQUIRE((completion.ok() || end.device_failed) == true);
      if (!completion.ok()) REQUIRE(end.sq.failed());
      end.pending.pop_front();
      end.retired += completion.wr_count;
    }
    // poll() publishes how far it read.
    REQUIRE(cq_memory_.consumer_record() == ((scale_.first + consumed()) & 0xffffff));
  }
  std::uint32_t consumed() const { return static_cast<std::uint32_t>(cq_.cqes_total()) - scale_.first; }

  void check() {
    std::uint32_t outstanding = 0;
    for (const auto& end : ends_) {
      REQUIRE(end->sq.outstanding() == end->pending.size());
      REQUIRE(end->sq.posted_total() == end->next_wr_id);
      outstanding += end->sq.outstanding();
    }
    REQUIRE(cq_.free_slots() == scale_.cq_entries - scale_.qps - outstanding);
  }

  // Everything posted is retired without the caller's posting more.
  void finish() {
    for (const auto& end : ends_) end->sq.ring_doorbell();
    bool idle = false;
    while (!idle) {
      idle = true;
      for (const auto& end : ends_) {
        idle = idle && !end->memory.has_work();
        device(*end, 1000);
      }
      while (cq_.ready()) {
        idle = false;
        poll(24);
      }
    }
    check();
    for (const auto& end : ends_) {
      REQUIRE(end->pending.empty());
      REQUIRE(end->sq.outstanding() == 0);
      REQUIRE(end->sq.free_blocks() == scale_.blocks);
      REQUIRE(end->retired == end->next_wr_id);
      REQUIRE(end->sq.failed() == end->device_failed);
    }
    REQUIRE(cq_.free_slots() == scale_.cq_entries - scale_.qps);
    for (const auto& end : ends_) cq_.detach(end->memory.qpn());
    REQUIRE(cq_.free_slots() == scale_.cq_entries);
  }

  Scale scale_;
  std::mt19937_64 random_;
  CqMemory cq_memory_;
  CompletionQueue cq_;
  std::vector<std::unique_ptr<End>> ends_;
  std::map<std::uint32_t, End*> by_qpn_;
  std::uint64_t posted_ = 0;
  std::uint64_t failed_queues_ = 0;
};

std::uint64_t run(const Scale& scale, std::uint64_t seed) {
  CAPTURE(seed);
  CAPTURE(scale.qps);
  CAPTURE(scale.blocks);
  CAPTURE(scale.cq_entries);
  CAPTURE(scale.signal_every);
  Model model(scale, seed);
  model.run();
  return model.posted();
}

}  // namespace

TEST_SUITE("queue.model") {
  TEST_CASE("whatever is posted is retired once, in order, and gives its room back") {
    std::uint64_t posted = 0;
    for (std::uint64_t seed = 1; seed <= 12; ++seed)
      for (const std::uint32_t signal_every : {1U, 3U, 16U, 64U})
        for (const std::uint32_t blocks : {16U, 64U})
          posted +=
              run({.qps = 3, .blocks = blocks, .cq_entries = 64, .signal_every = signal_every, .steps = 300},
                  seed);
    CHECK(posted > 10'000);
  }

  TEST_CASE("a completion queue far smaller than the send rings is never overrun") {
    std::uint64_t posted = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed)
      for (const std::uint32_t entries : {4U, 8U, 16U})
        posted +=
            run({.qps = 3, .blocks = 64, .cq_entries = entries, .signal_every = 16, .steps = 400}, seed);
    CHECK(posted > 10'000);
  }

  TEST_CASE("a failure flushes its queue alone, and every request still comes back") {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      CAPTURE(seed);
      Model model(
          {.qps = 4, .blocks = 32, .cq_entries = 64, .signal_every = 8, .steps = 300, .failures = 0.01},
          seed);
      model.run();
      if (seed == 60) CHECK(model.failed_queues() > 0);
    }
  }

  TEST_CASE("the 16-bit producer index and the laps of both rings wrap unnoticed") {
    CHECK(run({.qps = 1, .blocks = 64, .cq_entries = 64, .signal_every = 16, .steps = 60'000}, 7) > 100'000);
  }

  TEST_CASE("the 32-bit counters of blocks, requests and CQEs wrap unnoticed") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed)
      for (const std::uint32_t before : {16U, 256U, 1024U})
        run({.qps = 2, .blocks = 64, .cq_entries = 64, .signal_every = 8, .steps = 600, .first = 0U - before},
            seed);
  }
}
