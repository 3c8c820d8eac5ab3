// Posting and polling, timed. A round is as many requests as the ring holds; what the device does
// between two rounds is not timed. Every post is counted with all that its WR costs the poster:
// wr_id, ring and completion queue space, statistics, 1 signalled in 32.
//
// Items are requests or completions: items_per_second is their rate.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>

#include "operations.hpp"
#include "pollen/probe/tsc.hpp"

namespace perf {
namespace {

namespace probe = pollen::probe;

void require(bool done) {
  if (done) return;
  std::fputs("queue_bench: an operation found no room\n", stderr);
  std::abort();
}

// Times run(), which does `count` operations; `prepare` and `finish` around it are not timed.
template <class Prepare, class Run, class Finish>
void rounds(benchmark::State& state, std::uint32_t count, Prepare prepare, Run run, Finish finish) {
  const std::uint64_t clock = probe::ordered_reading_cycles();
  for (auto _ : state) {
    prepare();
    const std::uint64_t begin = probe::now_cycles_ordered();
    run();
    const std::uint64_t cycles = probe::now_cycles_ordered() - begin;
    finish();
    state.SetIterationTime(probe::tsc_scale().ns(static_cast<double>(cycles - std::min(cycles, clock))) * 1e-9);
  }
  state.SetItemsProcessed(state.iterations() * count);
}

constexpr auto nothing = [] {};
constexpr std::uint32_t sends = ring_blocks / 2;  // of two blocks each
constexpr std::uint32_t writes = ring_blocks;

void post_send_round(benchmark::State& state) {
  QuietDevice device(burst);
  const Pages data(message_bytes);
  const auto per_doorbell = static_cast<std::uint32_t>(state.range(0));
  rounds(state, sends, nothing,
         [&] {
           require(post_send(device.sq, std::span<const std::byte, message_bytes>(data.bytes, message_bytes), sends,
                             per_doorbell));
         },
         [&] { device.drain(); });
}
BENCHMARK(post_send_round)->Name("post.send64")->Arg(1)->Arg(32)->UseManualTime();

void post_send_of_round(benchmark::State& state) {
  QuietDevice device(burst);
  const Pages data(message_bytes);
  std::size_t bytes = message_bytes;
  benchmark::DoNotOptimize(bytes);
  const auto per_doorbell = static_cast<std::uint32_t>(state.range(0));
  rounds(state, sends, nothing,
         [&] { require(post_send_of(device.sq, std::span(data.bytes, bytes), sends, per_doorbell)); },
         [&] { device.drain(); });
}
BENCHMARK(post_send_of_round)->Name("post.send64dyn")->Arg(1)->Arg(32)->UseManualTime();

void post_write_round(benchmark::State& state) {
  QuietDevice device(burst);
  const Pages data(message_bytes);
  const auto per_doorbell = static_cast<std::uint32_t>(state.range(0));
  rounds(state, writes, nothing,
         [&] { require(post_write(device.sq, {data.bytes, message_bytes, 5}, {0x1000, 6}, writes, per_doorbell)); },
         [&] { device.drain(); });
}
BENCHMARK(post_write_round)->Name("post.write")->Arg(1)->Arg(32)->UseManualTime();

void post_receive_round(benchmark::State& state) {
  QuietDevice device(burst);
  const Pages data(message_bytes);
  const auto per_doorbell = static_cast<std::uint32_t>(state.range(0));
  rounds(state, ring_blocks, nothing,
         [&] { require(post_receives(device.rq, {data.bytes, message_bytes, 5}, ring_blocks, per_doorbell)); },
         [&] { device.drain(); });
}
BENCHMARK(post_receive_round)->Name("post.recv")->Arg(1)->Arg(32)->UseManualTime();

void poll_sends(benchmark::State& state) {
  QuietDevice device(1);
  const Pages data(message_bytes);
  Completion out[poll_batch];
  rounds(state, writes,
         [&] {
           require(post_write(device.sq, {data.bytes, message_bytes, 5}, {0x1000, 6}, writes, burst));
           device.complete_sends();
         },
         [&] {
           for (std::uint32_t i = 0; i < writes; i += poll_batch) require(poll(device.cq, out) == poll_batch);
         },
         nothing);
}
BENCHMARK(poll_sends)->Name("poll.x16")->UseManualTime();

void poll_receives(benchmark::State& state) {
  QuietDevice device(1);
  const Pages data(message_bytes);
  Completion out[poll_batch];
  rounds(state, ring_blocks,
         [&] {
           require(post_receives(device.rq, {data.bytes, message_bytes, 5}, ring_blocks, burst));
           device.complete_receives(ring_blocks);
         },
         [&] {
           for (std::uint32_t i = 0; i < ring_blocks; i += poll_batch) require(poll(device.cq, out) == poll_batch);
         },
         nothing);
}
BENCHMARK(poll_receives)->Name("poll.recv.x16")->UseManualTime();

void poll_empty(benchmark::State& state) {
  QuietDevice device(1);
  Completion out[poll_batch];
  constexpr std::uint32_t polls = 1024;
  rounds(state, polls, nothing,
         [&] {
           for (std::uint32_t i = 0; i < polls; ++i) require(poll(device.cq, out) == 0);
         },
         nothing);
}
BENCHMARK(poll_empty)->Name("poll.empty")->UseManualTime();

struct Bare {
  BareRing ring() { return {.wqes = wqes.bytes, .record = &record, .uar = uar.bytes}; }
  Pages wqes{ring_blocks * block_bytes};
  Pages uar{4096};
  Pages data{message_bytes};
  std::uint32_t record = 0;
};

void bare_send(benchmark::State& state) {
  Bare bare;
  BareRing ring = bare.ring();
  const auto per_doorbell = static_cast<std::uint32_t>(state.range(0));
  rounds(state, sends, nothing, [&] { post_bare_send(ring, bare.data.bytes, sends, per_doorbell); }, nothing);
}
BENCHMARK(bare_send)->Name("bare.send64")->Arg(1)->Arg(32)->UseManualTime();

void bare_write(benchmark::State& state) {
  Bare bare;
  BareRing ring = bare.ring();
  const auto per_doorbell = static_cast<std::uint32_t>(state.range(0));
  rounds(state, writes, nothing,
         [&] { post_bare_write(ring, {bare.data.bytes, message_bytes, 5}, {0x1000, 6}, writes, per_doorbell); },
         nothing);
}
BENCHMARK(bare_write)->Name("bare.write")->Arg(1)->Arg(32)->UseManualTime();

}  // namespace
}  // namespace perf

BENCHMARK_MAIN();
