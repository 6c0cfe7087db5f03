#include <cmath>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "comm/collective_cases.h"
#include "comm/lengths.h"
#include "comm/local/control_arena.h"

namespace tutti::test {
namespace {

std::vector<std::int64_t> sizes(int ranks) {
  const auto small = static_cast<std::int64_t>(small_bytes(ranks) / sizeof(float));
  std::vector<std::int64_t> all = {0, 1, 63, 64, 65, 1000, small - 1, small, small + 1, kChunk + 1};
  if (!kSanitized) {
    for (const std::int64_t more : {kChunk - 1, kChunk, 2 * kChunk + 65, std::int64_t{1'000'007}})
      all.push_back(more);
  }
  return all;
}

class AllReduceOf : public ::testing::TestWithParam<int> {};

// promise: group#what-the-result-is, group.h#all_reduce, numerics#one-tree
TEST_P(AllReduceOf, EverySizeAndPlacementIsTheTreesSum) {
  const int ranks = GetParam();
  std::vector<std::vector<Values<float>>> inputs;
  std::vector<Values<float>> wanted;
  for (const std::int64_t size : sizes(ranks)) {
    inputs.push_back(random_inputs<float>(ranks, size, static_cast<std::uint64_t>(size)));
    wanted.push_back(reduced(inputs.back(), Reduction::sum));
  }
  run_thread_ranks(ranks, [&](Job job) {
    const Group group(job);
    Room<float> room(group, sizes(ranks).back());
    for (std::size_t p = 0; p < placement_names().size(); ++p) {
      const Placement at = placement(p, group.rank());
      for (std::size_t s = 0; s < sizes(ranks).size(); ++s) {
        const Values<float>& mine = inputs[s][static_cast<std::size_t>(group.rank())];
        float* const in = room.in(at);
        float* const out = room.out(at);
        if (!at.in_place) std::fill_n(out, mine.count(), -1.0f);
        std::copy_n(mine.data(), mine.count(), in);
        group.all_reduce(view(in, mine.count()), view(out, mine.count()), Reduction::sum);
        ASSERT_TRUE(same_values(out, wanted[s].data(), mine.count()))
            << placement_names()[p] << ", " << mine.count() << " elements, rank " << group.rank();
        ASSERT_TRUE(at.in_place || same_values(in, mine.data(), mine.count()));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AllReduceOf, ::testing::Values(1, 2, 3, 5, 8));

// Of a size at which places decide the way: in place everywhere, nowhere, or at some members.
// promise: group#two-ways, group#what-the-result-is
TEST(AllReduce, MiddlingSizesInMixedPlaces) {
  for (const int ranks : {2, 3}) {
    ThreadOptions roomy;
    roomy.processors = ranks;
    const auto border = static_cast<std::int64_t>(kCopyBytes / sizeof(float));
    const auto small = static_cast<std::int64_t>(small_bytes(ranks) / sizeof(float));
    for (const std::int64_t size : {border, border + 1, border + 65, small}) {
      const auto inputs = random_inputs<float>(ranks, size);
      const Values<float> wanted = reduced(inputs, Reduction::sum);
      run_thread_ranks(
          ranks,
          [&](Job job) {
            const Group group(job);
            Room<float> room(group, size);
            const Values<float>& mine = inputs[static_cast<std::size_t>(group.rank())];
            for (std::size_t round = 0; round < 3 * placement_names().size(); ++round) {
              // The last rank's place moves on more slowly than that of the others.
              const bool last = group.rank() + 1 == ranks;
              const auto p = last ? round / 3 : round % placement_names().size();
              const Placement at = placement(p, group.rank());
              float* const in = room.in(at);
              float* const out = room.out(at);
              std::copy_n(mine.data(), size, in);
              group.all_reduce(view(in, size), view(out, size), Reduction::sum);
              ASSERT_TRUE(same_values(out, wanted.data(), size)) << size << ", round " << round;
              Work work;
              std::copy_n(mine.data(), size, in);
              work = group.start().all_reduce(view(in, size), view(out, size), Reduction::sum);
              while (!work.done()) std::this_thread::yield();
              work.wait();
              ASSERT_TRUE(same_values(out, wanted.data(), size)) << size << ", polled " << round;
            }
          },
          roomy);
    }
  }
}

TEST(AllReduce, SixtyFourRanks) {
  constexpr int kRanks = 64;
  for (const std::int64_t size : {std::int64_t{65}, std::int64_t{257 * 64 + 7}}) {
    const auto inputs = random_inputs<float>(kRanks, size);
    const Values<float> wanted = reduced(inputs, Reduction::sum);
    run_thread_ranks(kRanks, [&](Job job) {
      const Group group(job);
      Values<float> out(size);
      group.all_reduce(view(inputs[static_cast<std::size_t>(group.rank())]), view(out),
                       Reduction::sum);
      ASSERT_TRUE(same_values(out.data(), wanted.data(), size));
    });
  }
}

template <class T>
class AllReduceTyped : public ::testing::Test {};
using Types = ::testing::Types<float, double, model::Half, model::BFloat, std::int32_t,
                               std::int64_t, std::uint8_t, bool>;
TYPED_TEST_SUITE(AllReduceTyped, Types);

// promise: dtype.h#Reduction, group#what-the-result-is
TYPED_TEST(AllReduceTyped, EveryDefinedReductionIsTheModels) {
  constexpr int kRanks = 5;
  constexpr DType kType = model::DTypeOf<TypeParam>::value;
  const auto large = static_cast<std::int64_t>(kInlineBytes / sizeof(TypeParam)) + 129;
  int defined = 0;
  for (const Reduction reduction :
       {Reduction::sum, Reduction::mean, Reduction::max, Reduction::min, Reduction::product,
        Reduction::logical_and, Reduction::logical_or}) {
    if (!is_defined(reduction, kType)) continue;
    ++defined;
    const auto inputs = random_inputs<TypeParam>(kRanks, large);
    const Values<TypeParam> wanted = reduced(inputs, reduction);
    run_thread_ranks(kRanks, [&](Job job) {
      const Group group(job);
      Room<TypeParam> room(group, large);
      const Values<TypeParam>& mine = inputs[static_cast<std::size_t>(group.rank())];
      for (const bool shared : {false, true}) {
        const Placement at{.in_shared = shared, .out_shared = shared, .in_place = shared};
        // The bits of an element may not depend on the path, so the long result begins with the
        // short one.
        for (const std::int64_t size : {std::int64_t{65}, large}) {
          std::memcpy(room.in(at), mine.data(), static_cast<std::size_t>(size) * sizeof(TypeParam));
          group.all_reduce(view(room.in(at), size), view(room.out(at), size), reduction);
          ASSERT_TRUE(same_values(room.out(at), wanted.data(), size))
              << name_of(reduction) << " of " << name_of(kType) << ", " << size;
        }
      }
    });
  }
  EXPECT_EQ(defined, kType == DType::boolean ? 2 : is_floating(kType) ? 5 : 4);
}

// promise: dtype.h#Reduction, group#what-the-result-is, numerics#other-types-and-values
TEST(AllReduce, NaNReachesEveryRankInMaxAndMin) {
  for (const Reduction reduction : {Reduction::max, Reduction::min, Reduction::sum}) {
    for (const int holder : {0, 1, 2}) {
      run_thread_ranks(3, [&](Job job) {
        const Group group(job);
        std::vector<float> x(20'000, static_cast<float>(group.rank()));
        if (group.rank() == holder) x[3] = x[19'999] = std::numeric_limits<float>::quiet_NaN();
        group.all_reduce(view(x.data(), 10), reduction);
        EXPECT_TRUE(std::isnan(x[3]));
        EXPECT_FALSE(std::isnan(x[4]));
        group.all_reduce(view(x.data(), 20'000), reduction);
        EXPECT_TRUE(std::isnan(x[19'999]));
        EXPECT_FALSE(std::isnan(x[19'998]));
      });
    }
  }
}

// promise: group#what-the-result-is
TEST(AllReduce, SixteenBitFloatsAreRoundedOnce) {
  // 256 + 1 + 1 in bfloat16: added pairwise in 16 bits, both ones would be lost.
  run_thread_ranks(4, [](Job job) {
    const Group group(job);
    const float mine[] = {256.0f, 0.0f, 1.0f, 1.0f};
    model::BFloat x = model::narrow<model::BFloat>(mine[group.rank()]);
    group.all_reduce(view(&x, 1), Reduction::sum);
    EXPECT_EQ(model::widen(x), 258.0f);
  });
}

TEST(AllReduce, MeanIsTheSumDividedOnce) {
  run_thread_ranks(3, [](Job job) {
    const Group group(job);
    float x = 1.0f;
    group.all_reduce(view(&x, 1), Reduction::mean);
    EXPECT_EQ(x, 1.0f);
    double y = group.rank();
    group.all_reduce(view(&y, 1), Reduction::mean);
    EXPECT_EQ(y, 1.0);
  });
}

TEST(AllReduce, NegativeControlAddingInRankOrderGivesOtherBytes) {
  constexpr int kRanks = 5;
  constexpr std::int64_t kSize = 4099;
  const auto inputs = random_inputs<float>(kRanks, kSize);
  Values<float> in_order(kSize);
  for (std::int64_t i = 0; i < kSize; ++i) {
    in_order[i] = inputs[0][i];
    for (std::size_t rank = 1; rank < kRanks; ++rank) in_order[i] += inputs[rank][i];
  }
  run_thread_ranks(kRanks, [&](Job job) {
    const Group group(job);
    Values<float> out(kSize);
    group.all_reduce(view(inputs[static_cast<std::size_t>(group.rank())]), view(out),
                     Reduction::sum);
    EXPECT_FALSE(same_values(out.data(), in_order.data(), kSize));
  });
}

}  // namespace
}  // namespace tutti::test
