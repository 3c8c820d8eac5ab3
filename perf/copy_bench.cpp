// Copies: Pollen's beside the C library's, each between one source and one target of the size, as a
// transfer between two rings of one slot. Bytes are those that arrive.
#include <benchmark/benchmark.h>

#include <cstring>

#include "pollen/memory/copy.hpp"
#include "quiet_device.hpp"

namespace {

void vector_copy(void* to, const void* from, std::size_t bytes) { pollen::memory::copy(to, from, bytes); }
void library_copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

template <auto copy>
void run(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const perf::Pages from(bytes);
  const perf::Pages to(bytes);
  for (auto _ : state) {
    copy(to.bytes, from.bytes, bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

BENCHMARK(run<vector_copy>)->Name("copy")->Arg(64)->Arg(4096)->Arg(65536)->Arg(1 << 20);
BENCHMARK(run<library_copy>)->Name("memcpy")->Arg(64)->Arg(4096)->Arg(65536)->Arg(1 << 20);

}  // namespace

BENCHMARK_MAIN();
