// The software NIC, both ends in one thread: all that a message costs, from the post to the poll of its
// last completion, the work of both engines included.
#include <benchmark/benchmark.h>

#include "soft_loop.hpp"

namespace {

constexpr std::uint32_t messages = 1024;

void sends(benchmark::State& state) {
  perf::SoftLoop loop;
  for (auto _ : state) loop.carry_sends(messages);
  state.SetItemsProcessed(state.iterations() * messages);
}
BENCHMARK(sends)->Name("soft.wqe");

void writes(benchmark::State& state) {
  perf::SoftLoop loop;
  const auto bytes = static_cast<std::uint32_t>(state.range(0));
  for (auto _ : state) loop.carry_writes(messages, bytes);
  state.SetItemsProcessed(state.iterations() * messages);
  state.SetBytesProcessed(state.iterations() * messages * bytes);
}
BENCHMARK(writes)->Name("soft.wqe.write")->Arg(64)->Arg(65536);

}  // namespace

BENCHMARK_MAIN();
