// Posting and polling, timed. A round is as many requests as the ring holds; what the device does
// between two rounds is not timed. Every post is counted with all that its WR costs the poster:
// wr_id, ring and completion queue space, statistics, 1 signalled in 32.
//
// The counter "ns" is that of an operation in the median round: a round that an interrupt or another
// thread fell into says nothing about the operation.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

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

// Times run(), which does `count` operations and tells whether all of them found room; `prepare` and
// `finish` around it are not timed.
template <class Prepare, class Run, class Finish>
void rounds(benchmark::State& state, std::uint32_t count, Prepare prepare, Run run, Finish finish) {
  const std::uint64_t clock = probe::ordered_reading_cycles();
  std::vector<double> times_ns;
  for (auto _ : state) {
    prepare();
    const std::uint64_t begin = probe::now_cycles_ordered();
    const bool done = run();
    const std::uint64_t cycles = probe::now_cycles_ordered() - begin;
    require(done);
    finish();
    times_ns.push_back(probe::tsc_scale().ns(static_cast<double>(cycles - std::min(cycles, clock))));
    state.SetIterationTime(times_ns.back() * 1e-9);
  }
  const auto middle = times_ns.begin() + static_cast<std::ptrdiff_t>(times_ns.size() / 2);
  std::nth_element(times_ns.begin(), middle, times_ns.end());
  state.counters["ns"] = *middle / count;
}

constexpr auto nothing = [] {};
constexpr std::uint32_t sends = ring_blocks / 2;  // of two blocks each
constexpr std::uint32_t writes = ring_blocks;

std::uint32_t per_burst(const benchmark::State& state) { return static_cast<std::uint32_t>(state.range(0)); }

void post_sends(benchmark::State& state) {
  QuietDevice device(burst);
  const Pages data(message_bytes);
  const std::span<const std::byte, message_bytes> message(data.bytes, message_bytes);
  rounds(
      state, sends, nothing,
      [&] {
        return in_bursts(sends, per_burst(state),
                         [&](std::uint32_t n) { return post_send(device.sq, message, n); });
      },
      [&] { device.drain(); });
}
BENCHMARK(post_sends)->Name("post.send64")->Arg(1)->Arg(burst)->UseManualTime();

void post_sends_of(benchmark::State& state) {
  QuietDevice device(burst);
  const Pages data(message_bytes);
  const std::span<const std::byte> message(data.bytes, message_bytes);
  rounds(
      state, sends, nothing,
      [&] {
        return in_bursts(sends, per_burst(state),
                         [&](std::uint32_t n) { return post_send_of(device.sq, message, n); });
      },
      [&] { device.drain(); });
}
BENCHMARK(post_sends_of)->Name("post.send64dyn")->Arg(1)->Arg(burst)->UseManualTime();

void post_writes(benchmark::State& state) {
  QuietDevice device(burst);
  const Pages data(message_bytes);
  const Sge local{data.bytes, message_bytes, 5};
  rounds(
      state, writes, nothing,
      [&] {
        return in_bursts(writes, per_burst(state), [&](std::uint32_t n) {
          return post_write(device.sq, local, {0x1000, 6}, n);
        });
      },
      [&] { device.drain(); });
}
BENCHMARK(post_writes)->Name("post.write")->Arg(1)->Arg(burst)->UseManualTime();

void post_buffers(benchmark::State& state) {
  QuietDevice device(burst);
  const Pages data(message_bytes);
  const Sge buffer{data.bytes, message_bytes, 5};
  rounds(
      state, ring_blocks, nothing,
      [&] {
        return in_bursts(ring_blocks, per_burst(state),
                         [&](std::uint32_t n) { return post_receives(device.rq, buffer, n); });
      },
      [&] { device.drain(); });
}
BENCHMARK(post_buffers)->Name("post.recv")->Arg(1)->Arg(burst)->UseManualTime();

void poll_sends(benchmark::State& state) {
  QuietDevice device(1);
  Completion out[poll_batch];
  rounds(
      state, writes, [&] { device.post_and_complete_sends(); },
      [&] {
        return in_bursts(writes, poll_batch, [&](std::uint32_t n) { return poll(device.cq, out) == n; });
      },
      nothing);
}
BENCHMARK(poll_sends)->Name("poll.x16")->UseManualTime();

void poll_receives(benchmark::State& state) {
  QuietDevice device(1);
  Completion out[poll_batch];
  rounds(
      state, ring_blocks, [&] { device.post_and_complete_receives(); },
      [&] {
        return in_bursts(ring_blocks, poll_batch, [&](std::uint32_t n) { return poll(device.cq, out) == n; });
      },
      nothing);
}
BENCHMARK(poll_receives)->Name("poll.recv.x16")->UseManualTime();

void poll_empty(benchmark::State& state) {
  QuietDevice device(1);
  Completion out[poll_batch];
  constexpr std::uint32_t polls = 1024;
  rounds(
      state, polls, nothing,
      [&] { return in_bursts(polls, 1, [&](std::uint32_t) { return poll(device.cq, out) == 0; }); }, nothing);
}
BENCHMARK(poll_empty)->Name("poll.empty")->UseManualTime();

void bare_sends(benchmark::State& state) {
  BareQueue bare;
  rounds(
      state, sends, nothing,
      [&] {
        return in_bursts(sends, per_burst(state), [&](std::uint32_t n) {
          post_bare_send(bare.ring, bare.data.bytes, n);
          return true;
        });
      },
      nothing);
}
BENCHMARK(bare_sends)->Name("bare.send64")->Arg(1)->Arg(burst)->UseManualTime();

void bare_writes(benchmark::State& state) {
  BareQueue bare;
  const Sge local{bare.data.bytes, message_bytes, 5};
  rounds(
      state, writes, nothing,
      [&] {
        return in_bursts(writes, per_burst(state), [&](std::uint32_t n) {
          post_bare_write(bare.ring, local, {0x1000, 6}, n);
          return true;
        });
      },
      nothing);
}
BENCHMARK(bare_writes)->Name("bare.write")->Arg(1)->Arg(burst)->UseManualTime();

}  // namespace
}  // namespace perf

BENCHMARK_MAIN();
