// Folds whose tiles several threads share, in any order, have the bytes of one thread's.

#include "sync/nodes/slice_fold.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "kernels/fold_schedule.h"
#include "support/thread_ranks.h"
#include "sync/nodes/for_tiles.h"
#include "sync/whole_step.h"
#include "tutti/share.h"

namespace tutti::test {
namespace {

constexpr auto kTileElements = static_cast<std::size_t>(kFoldTile);

/// So many threads beside one another, each from its last tile on; 0 is the caller. Counts folds.
ForTiles backwards_on(int threads, std::atomic<int>& folds) {
  return [threads, &folds](std::int64_t tiles, const std::function<void(std::int64_t)>& fold_tile) {
    EXPECT_GE(tiles, 2);
    ++folds;
    const auto work = [&](std::int64_t begin, std::int64_t by) {
      for (auto tile = tiles - 1 - begin; tile >= 0; tile -= by) fold_tile(tile);
    };
    if (threads == 0) return work(0, 1);
    std::vector<std::thread> all;
    for (int k = 0; k < threads; ++k) all.emplace_back(work, k, threads);
    for (auto& one : all) one.join();
  };
}

struct Shared {
  std::vector<std::size_t> counts;
  DType type = DType::float32;
  std::int64_t leaves = 5;
  std::size_t nodes = 1;  ///< at least so many
};

/// All sums of two steps, of which some leaves lack parameters.
std::string sums_of(const Job& job, const Shared& run, const ExchangeOptions& options) {
  auto specs = specs_of(run.counts);
  for (auto& spec : specs) spec.dtype = run.type;
  StepExchange exchange(Group(job), Plan(specs, {}), options);
  std::string bytes;
  for (std::int64_t step = 1; step <= 2; ++step) {
    const auto [begin, end] = share_of(run.leaves, job.rank(), job.size());
    exchange.open_scope(end - begin);
    for (auto l = begin; l < end; ++l) {
      exchange.leaves().begin_leaf(static_cast<double>(1 + l % 3));
      const auto leaf = random_leaf(run.counts, step, l, 2);
      for (std::size_t p = leaf.size(); p-- > 0;) {
        if (!leaf[p]) continue;
        std::vector<std::byte> values(run.counts[p] * size_of(run.type));
        round_into(values.data(), run.type, leaf[p]->data(), DType::float32, specs[p].count);
        exchange.leaves().write(p, values.data(), true);
      }
      exchange.leaves().end_leaf();
    }
    finish(exchange);
    EXPECT_GE(exchange.nodes().held().size(), run.nodes);
    for (std::size_t p = 0; p < specs.size(); ++p) {
      if (!exchange.nodes().touched(p)) continue;
      bytes.append(reinterpret_cast<const char*>(exchange.nodes().result(p)),
                   run.counts[p] * size_of(run.type));
    }
    exchange.group().barrier();
  }
  return bytes;
}

void expect_same_sums(int workers, const Shared& run, const ExchangeOptions& options) {
  std::string of_one;
  run_thread_ranks(workers, [&](const Job& job) {
    const auto bytes = sums_of(job, run, options);
    if (job.rank() == 0) of_one = bytes;
  });
  for (const int threads : {0, 3}) {
    run_thread_ranks(workers, [&](const Job& job) {
      std::atomic<int> folds = 0;
      auto shared = options;
      shared.for_tiles = backwards_on(threads, folds);
      EXPECT_TRUE(sums_of(job, run, shared) == of_one)
          << workers << " workers, " << threads << " threads, " << name_of(run.type);
      EXPECT_GT(folds, 0);
    });
  }
}

const std::vector<std::size_t> kAroundATile = {kTileElements - 1, kTileElements + 1,
                                               4 * kTileElements + 77};

// promise: gpu#what-it-costs
TEST(SliceFold, HasTheSameBytesOnAnyNumberOfThreads) {
  for (const int workers : {1, 2, 3}) expect_same_sums(workers, {kAroundATile}, small_buckets());
}

TEST(SliceFold, OfSixteenBitsAndOtherDivisorsHasThemToo) {
  for (const auto type : {DType::bfloat16, DType::float16}) {
    expect_same_sums(2, {kAroundATile, type}, small_buckets());
  }
  auto options = small_buckets();
  options.divisor = Divisor::contributors;
  expect_same_sums(2, {kAroundATile}, options);
}

TEST(SliceFold, OfMoreNodesThanOneProgramTakesHasThemToo) {
  const std::int64_t leaves = 66;
  auto options = small_buckets();
  for (std::int64_t l = 1; l < leaves; ++l) options.node_boundaries.push_back(l);
  expect_same_sums(2, {{3 * kTileElements + 5}, DType::float32, leaves, kMaxSources + 1}, options);
}

}  // namespace
}  // namespace tutti::test
