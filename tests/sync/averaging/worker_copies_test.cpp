// A worker's own copies, their mean over all workers, and what lies beside them.

#include "sync/averaging/worker_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/fold.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kNarrow = kTile + 3;

/// float32, bfloat16 of more than a tile, float64, and none.
Plan mixed_plan() {
  return {{{"a", {5}, {1}, 5, DType::float32},
           {"b", {kNarrow}, {1}, kNarrow, DType::bfloat16},
           {"c", {3}, {1}, 3, DType::float64},
           {"d", {0}, {1}, 0, DType::float32}},
          {}};
}

/// Every worker has a model of its own.
struct Worker {
  Worker(const Group& group, const AveragingPolicy& policy)
      : plan(mixed_plan()),
        memory(plan.parameters().size()),
        copies(group, plan, policy, {{0, 1, 2, 3}}, room(), "model") {}
  std::vector<std::byte*> room() {
    std::vector<std::byte*> values;
    for (std::size_t p = 0; p < memory.size(); ++p) {
      memory[p].resize(plan.parameters()[p].result_bytes);
      values.push_back(memory[p].data());
    }
    return values;
  }
  /// All elements of the parameter become `value`.
  void fill(std::uint32_t p, float value) {
    const auto& spec = plan.parameters()[p].spec;
    const std::vector<float> wide(static_cast<std::size_t>(spec.count), value);
    if (spec.dtype == DType::float64) {
      std::fill_n(reinterpret_cast<double*>(memory[p].data()), wide.size(), double{value});
    } else {
      round_into(memory[p].data(), spec.dtype, wide.data(), DType::float32, spec.count);
    }
  }
  /// The elements of a parameter of 16 or 32 bits.
  std::vector<float> values(std::uint32_t p) const {
    const auto& spec = plan.parameters()[p].spec;
    std::vector<float> wide(static_cast<std::size_t>(spec.count));
    scale_into(wide.data(), DType::float32, memory[p].data(), spec.dtype, spec.count, 1.0);
    return wide;
  }
  Plan plan;
  std::vector<std::vector<std::byte>> memory;
  WorkerCopies copies;
};

std::vector<float> as_floats(const std::byte* from, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::memcpy(values.data(), from, values.size() * sizeof(float));
  return values;
}

TEST(WorkerCopies, TheMeanIsOfAllWorkersAndBecomesTheirValueAndWhatTheyWere) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    const auto policy = block_momentum(1);
    Worker worker(group, *policy);
    auto& copies = worker.copies;
    for (std::uint32_t p = 0; p < 3; ++p) worker.fill(p, 1);
    copies.restart();
    const auto mine = static_cast<float>(2 + job.rank());
    worker.fill(0, mine);
    worker.fill(1, 4 * mine);
    copies.all_reduce(std::vector<std::uint32_t>{0, 1}, {});
    EXPECT_THAT(as_floats(copies.mean({0, 0, 5}), 5), Each(2.5f));
    const ElementRange tail{1, kTile, kNarrow};
    EXPECT_THAT(as_floats(copies.mean(tail), 3), Each(10.0f));
    EXPECT_THAT(as_floats(copies.before(tail), 3), Each(1.0f)) << "widened";
    const std::vector<float> values = {6, 1.00390625f, 8};  // the second one lies between two
    copies.store(tail, reinterpret_cast<const std::byte*>(values.data()));
    const auto narrow = worker.values(1);
    EXPECT_EQ(narrow[kTile - 1], 4 * mine) << "the first tile is left alone";
    EXPECT_THAT(std::vector<float>(narrow.begin() + kTile, narrow.end()), ElementsAre(6, 1, 8));
    EXPECT_THAT(as_floats(copies.before(tail), 3), ElementsAre(6, 1, 8)) << "rounded as the values";
    EXPECT_THAT(as_floats(copies.before({1, 0, 3}), 3), Each(1.0f));

    const std::vector<std::uint32_t> wide = {2};
    worker.fill(2, mine);
    copies.all_reduce(wide, {});
    double mean = 0;
    std::memcpy(&mean, copies.mean({2, 2, 3}), sizeof mean);
    EXPECT_EQ(mean, 2.5);
  });
}

// All values of a block are one value: 127 scales, which is 127 · 2⁻⁷ of the power of two below.
TEST(WorkerCopies, In8BitsTheMeanIsThatOfMessagesAndWhatTheyLackIsKept) {
  for (const int workers : {1, 2, 3}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const Group group(job);
      const auto policy = diloco(1, {.warm_up = 0, .int8 = true});
      const Plan plan({{"a", {5}, {1}, 5, DType::float32},
                       {"b", {kNarrow}, {1}, kNarrow, DType::bfloat16},
                       {"c", {3}, {1}, 3, DType::float32}},
                      {});
      std::vector<float> a(5, 1), c(3, 8);
      std::vector<std::uint16_t> b(static_cast<std::size_t>(kNarrow), 0x3F80);  // 1
      WorkerCopies copies(
          group, plan, *policy, {{0, 1, 2}},
          {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data()),
           reinterpret_cast<std::byte*>(c.data())},
          "model");
      EXPECT_EQ(copies.messages_back(), workers - 1);
      copies.restart();
      // 127 is sent as it is; 0.25 is rounded to 0, 0.75 to 1.
      a = {1 + 127, 1.25, 1.75, 1, 1};
      std::fill(b.begin(), b.end(), job.rank() == 0 ? 0x4000 : 0x3F80);  // 2, 1
      const std::vector<std::uint32_t> some = {0, 1};
      copies.all_reduce(some, {});
      EXPECT_THAT(as_floats(copies.mean({0, 0, 5}), 5), ElementsAre(128, 1, 2, 1, 1));
      const auto narrow = as_floats(copies.mean({1, kTile, kNarrow}), kNarrow - kTile);
      EXPECT_THAT(narrow,
                  Each(::testing::FloatNear(1 + 1.0F / static_cast<float>(workers), 1e-3F)));
      // Copies stay; what was kept makes 0.5 and 0.5, of which the even one is 0, and then 0.75.
      EXPECT_THAT(c, Each(8.0F));
      copies.all_reduce(some, {});
      EXPECT_THAT(as_floats(copies.mean({0, 0, 5}), 5), ElementsAre(128, 1, 1, 1, 1));
      copies.all_reduce(some, {});
      EXPECT_THAT(as_floats(copies.mean({0, 0, 5}), 5), ElementsAre(128, 2, 2, 1, 1));
    });
  }
}

TEST(WorkerCopies, AParameterMovesWhereAByteOfItDoes) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    const auto policy = local_sgd(1);
    Worker worker(group, *policy);
    auto& copies = worker.copies;
    for (std::uint32_t p = 0; p < 3; ++p) worker.fill(p, 0);
    copies.restart();
    const auto moved = [&] {
      std::vector<bool> all;
      for (std::uint32_t p = 0; p < 4; ++p) all.push_back(copies.has_moved(p));
      return all;
    };
    EXPECT_THAT(moved(), ElementsAre(false, false, false, false));
    worker.memory[1][2 * kTile + 5] = std::byte{1};
    worker.fill(2, -0.0f);  // equal, but not the same bytes
    EXPECT_THAT(moved(), ElementsAre(false, true, true, false));
    copies.restart();
    EXPECT_THAT(moved(), ElementsAre(false, false, false, false));
    EXPECT_TRUE(copies.is_finite(0));
    worker.fill(0, INFINITY);
    EXPECT_FALSE(copies.is_finite(0));
  });
}

TEST(WorkerCopies, StatesAndWhatCopiesWereLieApart) {
  run_thread_ranks(1, [](const Job& job) {
    class TwoStates final : public AveragingPolicy {
      std::string name() const override { return "two"; }
      bool due(std::int64_t, std::int64_t, std::int64_t) const override { return true; }
      int states() const override { return 2; }
    };
    const TwoStates policy;
    const Group group(job);
    Worker worker(group, policy);
    auto& copies = worker.copies;
    const ElementRange all{1, 0, kNarrow};
    for (int k = 0; k < 2; ++k) {
      auto* const state = copies.state(all, k);
      EXPECT_THAT(as_floats(state, kNarrow), Each(0.0f)) << "zero at first";
      const std::vector<float> values(static_cast<std::size_t>(kNarrow), 5.0f + k);
      std::memcpy(state, values.data(), values.size() * sizeof(float));
    }
    for (std::uint32_t p = 0; p < 3; ++p) worker.fill(p, 1);
    copies.restart();
    copies.all_reduce(std::vector<std::uint32_t>{0, 1}, {});
    EXPECT_THAT(as_floats(copies.state({1, kTile, kNarrow}, 0), 3), Each(5.0f));
    EXPECT_THAT(as_floats(copies.state({1, kTile, kNarrow}, 1), 3), Each(6.0f));
    // Means of the bucket; then what was, and two states, of each: at multiples of 64 bytes.
    const auto means = 5 * 4 + kNarrow * 4 + 3 * 8;
    const auto up = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
    EXPECT_EQ(copies.bytes(), static_cast<std::size_t>(up(means) + 3 * 64 + up(kNarrow * 2) +
                                                       2 * up(kNarrow * 4) + 3 * 64));
  });
}

// promise: averaging.h#own
TEST(WorkerCopies, ACopyIsMixedWithWhatAllBecomeAndRoundedOnce) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    const auto policy = diloco(2, {.warm_up = 0, .overlap = 1});
    Worker worker(group, *policy);
    auto& copies = worker.copies;
    const ElementRange tail{1, kTile, kNarrow};
    for (std::uint32_t p = 0; p < 3; ++p) worker.fill(p, 1);
    copies.restart();
    for (std::uint32_t p = 0; p < 3; ++p) worker.fill(p, 2);
    // A quarter of 2, and three of these: the second is 1.5 + 3 · 2⁻¹⁰, between two of bfloat16.
    const std::vector<float> values = {6, 1.3333333F + 0.00390625F, 8};
    copies.mix(tail, reinterpret_cast<const std::byte*>(values.data()), 0.25);
    const auto narrow = worker.values(1);
    EXPECT_EQ(narrow[kTile - 1], 2) << "the first tile is left alone";
    EXPECT_THAT(std::vector<float>(narrow.begin() + kTile, narrow.end()), ElementsAre(5, 1.5, 6.5));
    EXPECT_THAT(as_floats(copies.before(tail), 3), ElementsAre(6, 1.3359375F, 8))
        << "what all copies would be, rounded";
    const std::vector<double> wide = {3, 5, 7};
    copies.mix({2, 0, 3}, reinterpret_cast<const std::byte*>(wide.data()), 0.25);
    double mixed = 0;
    std::memcpy(&mixed, worker.memory[2].data() + 2 * sizeof(double), sizeof mixed);
    EXPECT_EQ(mixed, 0.25 * 2 + 0.75 * 7);
    EXPECT_NE(copies.in_flight(tail), copies.state(tail, 0));
    EXPECT_EQ(copies.in_flight(tail) - copies.in_flight({1, 0, 3}), kTile * 4);
  });
}

TEST(WorkerCopies, WhatRoundsToInfinityIsRefused) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    const auto policy = local_sgd(1);
    Worker worker(group, *policy);
    const std::vector<float> values = {3.4e38f};  // rounds to infinity in bfloat16
    try {
      worker.copies.store({1, 0, 1}, reinterpret_cast<const std::byte*>(values.data()));
      FAIL() << "infinity was stored";
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("averaging local-sgd:1, parameter \"b\": what its copies become is "
                            "beyond bfloat16"));
    }
  });
}

}  // namespace
}  // namespace tutti::test
