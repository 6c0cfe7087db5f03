// Does fold run at the speed of memory? Beside it: memcpy, and the loop a compiler vectorises.
//
//   fold_bench --benchmark_enable_random_interleaving --benchmark_repetitions=9
//
// `bytes_per_second` counts what has to be read and written: (sources + destinations) · bytes. As
// in a step, sources lie in arenas of equal layout, so at equal offsets from a page.

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/fold.h"

namespace {

struct Free {
  void operator()(float* p) const { ::operator delete (p, std::align_val_t{4096}); }
};

class Arenas {
 public:
  Arenas(std::size_t n, std::size_t bytes) : count_(bytes / sizeof(float)) {
    for (std::size_t k = 0; k < n; ++k) {
      memory_.emplace_back(static_cast<float*>(::operator new (bytes, std::align_val_t{4096})));
      std::memset(memory_.back().get(), 0, bytes);
      sources_.push_back(memory_.back().get());
      destinations_.push_back(memory_.back().get());
    }
  }
  std::size_t count() const { return count_; }
  float* at(std::size_t k) { return memory_[k].get(); }
  std::span<const void* const> sources() const { return sources_; }
  std::span<void* const> destinations() const { return destinations_; }

 private:
  std::size_t count_;
  std::vector<std::unique_ptr<float, Free>> memory_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
};

void report(benchmark::State& state, std::size_t streams, std::size_t bytes) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(streams * bytes));
}

void fold_in_place(benchmark::State& state, tutti::DType dtype) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  Arenas arenas(n, bytes);
  const auto program = tutti::FoldProgram::canonical(static_cast<int>(n));
  for (auto _ : state) {
    tutti::fold({.program = &program,
                 .source_type = dtype,
                 .result_type = dtype,
                 .sources = arenas.sources(),
                 .destinations = arenas.destinations(),
                 .count = static_cast<std::int64_t>(bytes / tutti::size_of(dtype))});
    benchmark::ClobberMemory();
  }
  report(state, 2 * n, bytes);
}

/// The tree written out over one pass, compiled for the build's baseline instruction set.
[[gnu::noinline]] void plain(float* a, float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
}
[[gnu::noinline]] void plain(float* const* s, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
    for (int k = 0; k < 4; ++k) s[k][i] = sum;
  }
}

void plain_loop(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  Arenas arenas(n, bytes);
  float* const all[] = {arenas.at(0), arenas.at(1), arenas.at(n - 2), arenas.at(n - 1)};
  for (auto _ : state) {
    if (n == 2) plain(arenas.at(0), arenas.at(1), arenas.count());
    if (n == 4) plain(all, arenas.count());
    benchmark::ClobberMemory();
  }
  report(state, 2 * n, bytes);
}

void memcpy_of_same_bytes(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(1));
  Arenas arenas(2, bytes);
  for (auto _ : state) {
    std::memcpy(arenas.at(0), arenas.at(1), bytes);
    benchmark::ClobberMemory();
  }
  report(state, 2, bytes);
}

const std::vector<std::int64_t> kBytes = {64 << 10, 1 << 20, 8 << 20, 64 << 20};

BENCHMARK_CAPTURE(fold_in_place, float32, tutti::DType::float32)
    ->ArgsProduct({{2, 3, 4, 5, 8, 16}, kBytes});
BENCHMARK_CAPTURE(fold_in_place, bfloat16, tutti::DType::bfloat16)->ArgsProduct({{2, 8}, kBytes});
BENCHMARK_CAPTURE(fold_in_place, float16, tutti::DType::float16)->ArgsProduct({{2, 8}, kBytes});
BENCHMARK(plain_loop)->ArgsProduct({{2, 4}, kBytes});
BENCHMARK(memcpy_of_same_bytes)->ArgsProduct({{2}, kBytes});

}  // namespace
