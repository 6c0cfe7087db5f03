// Does fold + Adam in one sweep run at the speed of memory? Beside it, in turn, so that both see
// the same machine: a probe that moves the same bytes in the same streams, and fold and update as
// two sweeps with the gradient in memory between them.
//
//   update_bench --benchmark_counters_tabular=true
//
// Bytes: (nodes + 3 reads + 3 writes) · 4 per element. `of_bound` is probe time ÷ time of the
// sweep, the median over pairs of neighbours, so that a machine that others slow down does not show
// in it; `of_two_sweeps` likewise. `min_of_bound` is that of the shortest times. Times of the sweep
// are in milliseconds.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "kernels/fold_update.h"
#include "kernels/rules/registry.h"
#include "kernels/update_probe.h"

namespace {

constexpr std::size_t kBytes = 64 << 20;
constexpr std::size_t kCount = kBytes / sizeof(float);

struct Free {
  void operator()(float* p) const { ::operator delete (p, std::align_val_t{4096}); }
};
using Memory = std::unique_ptr<float, Free>;

/// Finite through any number of probes and updates.
Memory filled(float value) {
  Memory memory(static_cast<float*>(::operator new (kBytes, std::align_val_t{4096})));
  std::fill_n(memory.get(), kCount, value);
  return memory;
}

template <class Work>
double seconds(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  benchmark::ClobberMemory();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double quantile(std::vector<double> times, double q) {
  std::ranges::sort(times);
  return times[static_cast<std::size_t>(std::lround(q * static_cast<double>(times.size() - 1)))];
}

/// Median of numerator[i] ÷ denominator[i].
double ratio(const std::vector<double>& numerator, const std::vector<double>& denominator) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < numerator.size(); ++i) {
    ratios.push_back(numerator[i] / denominator[i]);
  }
  return quantile(ratios, 0.5);
}

void fold_adam(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  std::vector<Memory> nodes;
  std::vector<const void*> sources;
  std::vector<const float*> streams;
  for (std::size_t k = 0; k < n; ++k) {
    nodes.push_back(filled(1e-3F));
    sources.push_back(nodes.back().get());
    streams.push_back(nodes.back().get());
  }
  const Memory parameter = filled(1);
  const Memory first = filled(0.1F);
  const Memory second = filled(0.1F);
  const Memory gradient = filled(0);
  const auto program = tutti::FoldProgram::canonical(static_cast<int>(n));
  tutti::FoldUpdate work{.fold = {.program = &program,
                                  .divisor = static_cast<double>(n),
                                  .sources = sources,
                                  .count = static_cast<std::int64_t>(kCount)},
                         .target = {.parameter = parameter.get(),
                                    .states = {first.get(), second.get()},
                                    .count = static_cast<std::int64_t>(kCount)},
                         .update = tutti::define(tutti::Adam{}).at({.step = 10})};
  tutti::Fold fold = work.fold;
  void* const destination = gradient.get();
  fold.destinations = {&destination, 1};
  tutti::UpdateTarget target = work.target;
  target.gradient = gradient.get();

  std::vector<double> probe, sweep, two_sweeps;
  for (auto _ : state) {
    probe.push_back(seconds(
        [&] { touch_streams(streams, parameter.get(), first.get(), second.get(), kCount); }));
    sweep.push_back(seconds([&] { tutti::fold_update(work); }));
    two_sweeps.push_back(seconds([&] {
      tutti::fold(fold);
      tutti::update(work.update, target);
    }));
    state.SetIterationTime(sweep.back());
  }
  const double bytes = static_cast<double>((n + 6) * kBytes);
  state.counters["of_bound"] = ratio(probe, sweep);
  state.counters["min_of_bound"] = quantile(probe, 0) / quantile(sweep, 0);
  state.counters["of_two_sweeps"] = ratio(two_sweeps, sweep);
  state.counters["bound_GB/s"] = bytes / quantile(probe, 0.5) / 1e9;
  state.counters["sweep_GB/s"] = bytes / quantile(sweep, 0.5) / 1e9;
  state.counters["ms_median"] = 1e3 * quantile(sweep, 0.5);
  state.counters["ms_min"] = 1e3 * quantile(sweep, 0);
  state.counters["ms_p99"] = 1e3 * quantile(sweep, 0.99);
}
BENCHMARK(fold_adam)->Arg(2)->Arg(4)->Arg(8)->Iterations(40)->UseManualTime()->Unit(
    benchmark::kMillisecond);

}  // namespace
