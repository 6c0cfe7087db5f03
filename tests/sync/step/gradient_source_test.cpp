// Sources of arrays: what owners fold, keep and read is the tree's sum, whichever way it is asked
// for; and every touched element has one owner.

#include "sync/step/gradient_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/plan/assignment.h"
#include "sync/step/dense_gradients.h"
#include "sync/step/owned_ranges.h"
#include "sync/whole_step.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Lt;

const std::vector<std::size_t> kSourceCounts = {65, 9000, 4096, 0, 20'000, 17};
constexpr std::uint32_t kPlaced = 4;
constexpr int kOwner = 1;
constexpr std::uint32_t kStaying = 1;
constexpr std::int64_t kLeaves = 5;
/// In eight: so many that some parameters have no gradient in a step.
constexpr unsigned kAbsent = 6;

Plan plan_with_owner() {
  std::vector<TensorSpec> specs;
  const auto plain = plan_of(kSourceCounts);
  for (const auto& entry : plain.parameters()) specs.push_back(entry.spec);
  specs[kPlaced].owner = kOwner;
  return {std::move(specs), {}};
}

ExchangeOptions options(bool coded = false) {
  ExchangeOptions options{.name = "model", .coded = coded, .sync_buffers = false};
  options.owners.assign(kSourceCounts.size(), -1);
  options.owners[kPlaced] = kOwner;
  return options;
}

/// Up to the nodes of all.
void hand_in(StepExchange& exchange, std::int64_t step, float loss_scale) {
  const auto& group = exchange.group();
  const auto mine = assign_shards(kLeaves, group.size())[static_cast<std::size_t>(group.rank())];
  exchange.open_shards(mine.begin, mine.count());
  for (auto l = mine.begin; l < mine.end; ++l) {
    exchange.leaves().begin_leaf(1);
    auto leaf = random_leaf(kSourceCounts, step, l, kAbsent);
    for (std::size_t p = 0; p < leaf.size(); ++p) {
      if (!leaf[p]) continue;
      for (auto& value : *leaf[p]) value *= loss_scale;
      exchange.leaves().write(p, leaf[p]->data(), true);
    }
    exchange.leaves().end_leaf();
  }
  exchange.arrive({});
}

std::optional<Values> expected(std::int64_t step, std::size_t p) {
  std::vector<Leaf> leaves;
  for (std::int64_t l = 0; l < kLeaves; ++l)
    leaves.push_back(random_leaf(kSourceCounts, step, l, kAbsent));
  return reduced(leaves, std::vector<double>(kLeaves, 1), p, kLeaves);
}

/// A whole model's elements, taken piece by piece.
struct Taken {
  Taken() {
    for (const auto count : kSourceCounts) {
      values.emplace_back(count);
      times.emplace_back(count);
    }
  }
  GradientSource::Take take() {
    return [this](const ElementRange& piece, const std::byte* at) {
      const auto begin = static_cast<std::size_t>(piece.begin);
      const auto count = static_cast<std::size_t>(piece.end - piece.begin);
      EXPECT_LE(count, static_cast<std::size_t>(kTile));
      std::memcpy(values[piece.parameter].data() + begin, at, count * sizeof(float));
      for (auto i = begin; i < begin + count; ++i) ++times[piece.parameter][i];
    };
  }
  void expect_whole(std::int64_t step) const {
    for (std::size_t p = 0; p < kSourceCounts.size(); ++p) {
      const auto sum = expected(step, p);
      EXPECT_EQ(times[p], std::vector<int>(kSourceCounts[p], sum ? 1 : 0)) << "p" << p;
      EXPECT_EQ(values[p], sum.value_or(Values(kSourceCounts[p]))) << "p" << p;
    }
  }
  std::vector<Values> values;
  std::vector<std::vector<int>> times;
};

TEST(DenseGradients, WhatIsFoldedReadAndKeptIsTheSameSum) {
  for (const int workers : {2, 3, 5, 8}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const Group group(job);
      StepExchange exchange(group, plan_with_owner(), options());
      DenseGradients dense(exchange);
      const OwnedRanges ranges(exchange, dense, [](std::uint32_t p) { return p == kStaying; });
      for (std::int64_t step = 1; step <= 3; ++step) {
        hand_in(exchange, step, 8);
        dense.begin(8);  // a power of two leaves no trace
        EXPECT_EQ(dense.prepare().text, "");
        Taken folded;
        Taken fused;
        Taken read;
        for (int r = 0; r < workers; ++r) {
          for (const auto& range : ranges.of(r)) {
            dense.fold(range, folded.take());
            auto work = dense.fused(range);
            ASSERT_TRUE(work);
            void* to = fused.values[range.parameter].data() + range.begin;
            work->destinations = {&to, 1};
            fold(*work);
          }
        }
        folded.expect_whole(step);
        for (std::uint32_t p = 0; p < kSourceCounts.size(); ++p) {
          if (!dense.touched(p)) continue;
          EXPECT_EQ(fused.values[p], folded.values[p]) << "p" << p;
          dense.read({p, 0, static_cast<std::int64_t>(kSourceCounts[p])}, read.take());
        }
        read.expect_whole(step);
        exchange.protocol().barrier("the end of its reading in");
        std::vector<std::vector<double>> blocks;
        for (std::uint32_t p = 0; p < kSourceCounts.size(); ++p)
          blocks.emplace_back(dense.norm_blocks(p));
        dense.keep(ranges.of(group.rank()),
                   [&](std::uint32_t p) -> std::span<double> { return blocks[p]; });
        exchange.protocol().barrier("the sums in");
        Taken kept;
        for (int r = 0; r < workers; ++r) {
          for (const auto& range : ranges.of(r)) dense.kept(r, range, kept.take());
        }
        kept.expect_whole(step);
        for (const auto& range : ranges.of(group.rank())) {
          for (const auto& tile : tiles_of(range)) {
            double squares = 0;
            const auto sum = *expected(step, tile.parameter);
            const Values part(sum.begin() + tile.begin, sum.begin() + tile.end);
            squares = squares_of(part);
            EXPECT_EQ(blocks[tile.parameter][static_cast<std::size_t>(tile.begin / kTile)],
                      squares);
          }
        }
        StepReport report;
        exchange.complete([&] { dense.note(); });
        dense.commit(report);
      }
      EXPECT_EQ(dense.traffic().steps, 3);
      group.barrier();
    });
  }
}

TEST(DenseGradients, HaveToBeJudgedWhereASumMayOverflow) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_with_owner(), options());
    StepExchange coded(group, plan_with_owner(), options(true));
    StepExchange empty(group, plan_of({}), {.coded = true});
    EXPECT_FALSE(DenseGradients(exchange).must_be_kept(false));
    EXPECT_TRUE(DenseGradients(exchange).must_be_kept(true));
    EXPECT_TRUE(DenseGradients(coded).must_be_kept(true));
    EXPECT_FALSE(DenseGradients(empty).must_be_kept(true));
    // With a codec, those are left that one worker has.
    const DenseGradients placed(coded);
    EXPECT_THAT(placed.parameters(), ElementsAre(kPlaced));
    group.barrier();
  });
}

TEST(OwnedRanges, PlacementAndStayingTilesDoNotFollowWhatIsTouched) {
  constexpr int kSteps = 16;
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_with_owner(), options());
    DenseGradients dense(exchange);
    const OwnedRanges ranges(exchange, dense, [](std::uint32_t p) { return p == kStaying; });
    const auto staying_of = [&](int rank) {
      std::vector<std::int64_t> begins;
      for (const auto& range : ranges.of(rank)) {
        if (range.parameter == kStaying) begins.push_back(range.begin);
      }
      return begins;
    };
    std::vector<std::vector<std::int64_t>> first(3);
    std::vector<int> untouched(kSourceCounts.size());
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      hand_in(exchange, step, 1);
      for (std::uint32_t p = 0; p < kSourceCounts.size(); ++p) untouched[p] += !dense.touched(p);
      for (int r = 0; r < 3; ++r) {
        for (const auto& range : ranges.of(r)) {
          EXPECT_TRUE(dense.touched(range.parameter));
          EXPECT_EQ(range.parameter == kPlaced && r != kOwner, false) << "rank " << r;
        }
        const auto now = staying_of(r);
        auto& before = first[static_cast<std::size_t>(r)];
        if (before.empty()) before = now;
        EXPECT_EQ(now, dense.touched(kStaying) ? before : decltype(now)()) << "rank " << r;
      }
      exchange.complete([] {});
    }
    for (const auto p : {0u, kPlaced, kStaying}) {
      EXPECT_THAT(untouched[p], AllOf(Gt(0), Lt(kSteps))) << "p" << p << " shows nothing";
    }
    group.barrier();
  });
}

/// A source by hand: element i of parameter p is 100·p + i.
class Counting final : public ArraySource {
 public:
  using ArraySource::ArraySource;
  void begin(double) override {}
  bool must_be_kept(bool) const override { return false; }
  void note() override {}
  void commit(StepReport&) override {}
  TrafficReport traffic() const override { return sent; }
  std::int64_t counted = 0;
  TrafficReport sent;

 private:
  void fold_to(const ElementRange& range, void* to, bool counts) override {
    for (auto i = range.begin; i < range.end; ++i) {
      static_cast<float*>(to)[i - range.begin] = static_cast<float>(100 * range.parameter + i);
    }
    if (counts) counted += range.end - range.begin;
  }
};

TEST(ArraySource, OwnersCountAndReadersDoNot) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of({3, 5000}), {.name = "model", .sync_buffers = false});
    Counting source(exchange.nodes(), {0, 1});
    EXPECT_FALSE(source.fused({1, 0, 5000}));
    const auto all = read_all(source, 1, 5000);
    EXPECT_EQ(source.counted, 0);
    ASSERT_EQ(all.size(), 5000u);
    EXPECT_EQ(all[4999], 5099.0f);
    source.fold({1, 0, 5000}, [](const ElementRange&, const std::byte*) {});
    EXPECT_EQ(source.counted, 5000);
    EXPECT_EQ(source.norm_blocks(1), 2u);
    EXPECT_EQ(source.norm_blocks(0), 1u);
    group.barrier();
  });
}

TEST(GradientSource, TrafficOfAllHasTheBucketsInTheOrderOfTheSourcesAndTheStepsOfTheFirst) {
  run_thread_ranks(1, [](const Job& job) {
    StepExchange exchange(Group(job), plan_of({3, 5}), {.name = "model", .sync_buffers = false});
    Counting first(exchange.nodes(), {0});
    Counting second(exchange.nodes(), {1});
    first.sent = {.steps = 3,
                  .collectives = 6,
                  .last_step = {{.parameters = "a", .bytes = 1}},
                  .all_steps = {{.parameters = "a", .bytes = 4}}};
    second.sent = {.steps = 2,
                   .collectives = 2,
                   .last_step = {{.parameters = "b"}, {.parameters = "c"}},
                   .all_steps = {{.parameters = "b", .bytes = 7}, {.parameters = "c"}}};
    const std::vector<GradientSource*> one = {&second};
    EXPECT_EQ(traffic_of(one).steps, 2);
    EXPECT_EQ(traffic_of(one).all_steps.size(), 2u);
    const std::vector<GradientSource*> both = {&first, &second};
    const auto all = traffic_of(both);
    EXPECT_EQ(all.steps, 3);
    EXPECT_EQ(all.collectives, 6);
    std::string names;
    for (const auto& bucket : all.last_step) names += bucket.parameters;
    EXPECT_EQ(names, "abc");
    EXPECT_EQ(all.last_step[0].bytes, 1u);
    EXPECT_EQ(all.all_steps[0].bytes, 4u);
    EXPECT_EQ(all.all_steps[1].bytes, 7u);
  });
}

TEST(ArraySource, FoldedForAllItIsInEveryArena) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    StepExchange exchange(group, plan_of(kSourceCounts), {.name = "model", .sync_buffers = false});
    Counting source(exchange.nodes(), {0, 1, 2, 3, 4, 5});
    hand_in(exchange, 2, 1);
    fold_for_all(source, exchange.nodes(), OwnedRanges(exchange, source).of(group.rank()));
    exchange.complete([] {});
    for (std::uint32_t p = 0; p < kSourceCounts.size(); ++p) {
      if (!expected(2, p)) continue;
      const auto* const at = reinterpret_cast<const float*>(exchange.nodes().result(p));
      for (std::size_t i = 0; i < kSourceCounts[p]; ++i) {
        ASSERT_EQ(at[i], static_cast<float>(100 * p + i)) << "p" << p;
      }
    }
    group.barrier();
  });
}

// In memory such a value takes half the bytes of its sum.
TEST(ArraySource, FoldedForAllItIsRoundedToTheParametersOwnType) {
  constexpr std::size_t kCount = 9000;
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    Plan plan({{"p", {kCount}, {1}, kCount, DType::bfloat16}}, {});
    StepExchange exchange(group, std::move(plan), {.name = "model", .sync_buffers = false});
    Counting source(exchange.nodes(), {0});
    const std::vector<std::uint16_t> gradient(kCount);
    exchange.open_scope(1);
    exchange.leaves().begin_leaf(1);
    exchange.leaves().write(0, gradient.data(), true);
    exchange.leaves().end_leaf();
    exchange.arrive({});
    fold_for_all(source, exchange.nodes(), OwnedRanges(exchange, source).of(group.rank()));
    exchange.complete([] {});
    Values sums(kCount);
    std::iota(sums.begin(), sums.end(), 0.0f);
    std::vector<std::uint16_t> expected(kCount);
    round_into(expected.data(), DType::bfloat16, sums.data(), DType::float32, kCount);
    EXPECT_EQ(std::memcmp(exchange.nodes().result(0), expected.data(), 2 * kCount), 0);
    group.barrier();
  });
}

}  // namespace
}  // namespace tutti::test
