#include <numeric>

#include <gtest/gtest.h>

#include "comm/collective_cases.h"
#include "comm/lengths.h"
#include "comm/local/control_arena.h"

namespace tutti::test {
namespace {

std::vector<std::int64_t> sizes(int ranks) {
  const auto small = static_cast<std::int64_t>(small_bytes(ranks) / sizeof(float));
  return {0, 1, 63, 64, 65, small - 1, small, small + 1, kChunk + 1, 2 * kChunk + 65};
}

/// Runs `body(group, room, at, size, where)` on every rank for every size and placement.
template <class Body>
void for_each_case(int ranks, const Body& body) {
  run_thread_ranks(ranks, [&](Job job) {
    const Group group(job);
    Room<float> room(group, sizes(ranks).back() * ranks);
    for (std::size_t p = 0; p < placement_names().size(); ++p) {
      for (const std::int64_t size : sizes(ranks)) {
        body(group, room, placement(p, group.rank()), size,
             placement_names()[p] + ", " + std::to_string(size) + " elements");
      }
    }
  });
}

class CollectivesOf : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::int64_t largest() const { return sizes(ranks()).back(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOf, ::testing::Values(1, 2, 3, 5));

// promise: group#what-the-result-is, group.h#reduce, numerics#one-tree
TEST_P(CollectivesOf, ReduceGivesTheTreesSumToTheRootAlone) {
  const auto inputs = random_inputs<float>(ranks(), largest());
  const auto wanted = reduced(inputs, Reduction::sum);
  for_each_case(ranks(), [&](const Group& group, Room<float>& room, const Placement& at,
                             std::int64_t size, const std::string& where) {
    const int root = static_cast<int>(size) % group.size();
    const Values<float>& mine = inputs[static_cast<std::size_t>(group.rank())];
    float* const in = room.in(at);
    float* const out = room.out(at);
    if (!at.in_place) std::fill_n(out, size, -1.0f);
    std::copy_n(mine.data(), size, in);
    group.reduce(view(in, size), view(out, size), Reduction::sum, root);
    if (group.rank() == root) {
      ASSERT_TRUE(same_values(out, wanted.data(), size)) << where;
    } else if (at.in_place) {
      ASSERT_TRUE(same_values(in, mine.data(), size)) << where;
    } else {
      ASSERT_EQ(std::count(out, out + size, -1.0f), size) << where;
    }
    group.reduce(view(in, 0), {}, Reduction::sum, root);
  });
}

// promise: group.h#reduce
TEST_P(CollectivesOf, ReduceNeedsNoRoomAtOthersThanTheRoot) {
  const auto inputs = random_inputs<float>(ranks(), largest());
  const auto wanted = reduced(inputs, Reduction::sum);
  run_thread_ranks(ranks(), [&](Job job) {
    const Group group(job);
    const int root = ranks() - 1;
    Values<float> out(largest());
    for (const std::int64_t size : sizes(ranks())) {
      group.reduce({inputs[static_cast<std::size_t>(group.rank())].data(), size, DType::float32},
                   group.rank() == root ? view(out.data(), size) : View{}, Reduction::sum, root);
      if (group.rank() == root) {
        ASSERT_TRUE(same_values(out.data(), wanted.data(), size)) << size;
      }
    }
  });
}

// promise: group#what-the-result-is, group.h#reduce_scatter, numerics#one-tree
TEST_P(CollectivesOf, ReduceScatterGivesEachItsPart) {
  const auto inputs = random_inputs<float>(ranks(), largest() * ranks());
  const auto wanted = reduced(inputs, Reduction::sum);
  for_each_case(ranks(), [&](const Group& group, Room<float>& room, const Placement& at,
                             std::int64_t size, const std::string& where) {
    const std::int64_t begin = group.rank() * size;
    float* const in = room.in(at);
    float* const out = at.in_place ? in + begin : room.out(at);
    std::copy_n(inputs[static_cast<std::size_t>(group.rank())].data(), size * group.size(), in);
    group.reduce_scatter(view(in, size * group.size()), view(out, size), Reduction::sum);
    ASSERT_TRUE(same_values(out, wanted.data() + begin, size)) << where;
  });
}

// promise: group.h#all_gather
TEST_P(CollectivesOf, AllGatherJoinsAllParts) {
  const auto inputs = random_inputs<float>(ranks(), largest());
  for_each_case(ranks(), [&](const Group& group, Room<float>& room, const Placement& at,
                             std::int64_t size, const std::string& where) {
    float* const out = room.out(at);
    float* const in = at.in_place ? out + group.rank() * size : room.in(at);
    std::copy_n(inputs[static_cast<std::size_t>(group.rank())].data(), size, in);
    group.all_gather(view(in, size), view(out, size * group.size()));
    for (int rank = 0; rank < group.size(); ++rank) {
      ASSERT_TRUE(
          same_values(out + rank * size, inputs[static_cast<std::size_t>(rank)].data(), size))
          << where << ", part " << rank;
    }
  });
}

// promise: group.h#all_gather_variable
TEST_P(CollectivesOf, AllGatherVariableJoinsUnequalParts) {
  const auto inputs = random_inputs<float>(ranks(), largest());
  for_each_case(ranks(), [&](const Group& group, Room<float>& room, const Placement& at,
                             std::int64_t size, const std::string& where) {
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < group.size(); ++rank)
      counts.push_back(rank % 2 == 1 ? size : size * rank / (2 * group.size()));
    const auto own = static_cast<std::size_t>(group.rank());
    const std::int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0});
    float* const out = room.out(at);
    float* const in = at.in_place ? out + begin : room.in(at);
    std::copy_n(inputs[own].data(), counts[own], in);
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    group.all_gather_variable(view(in, counts[own]), view(out, total), counts);
    const float* part = out;
    for (std::size_t rank = 0; rank < counts.size(); part += counts[rank], ++rank) {
      ASSERT_TRUE(same_values(part, inputs[rank].data(), counts[rank]))
          << where << ", part " << rank;
    }
  });
}

TEST_P(CollectivesOf, BroadcastGivesTheRootsBytesToAll) {
  const auto inputs = random_inputs<float>(ranks(), largest());
  for_each_case(ranks(), [&](const Group& group, Room<float>& room, const Placement& at,
                             std::int64_t size, const std::string& where) {
    const int root = static_cast<int>(size + 1) % group.size();
    float* const inout = room.in(at);
    std::copy_n(inputs[static_cast<std::size_t>(group.rank())].data(), size, inout);
    group.broadcast(view(inout, size), root);
    ASSERT_TRUE(same_values(inout, inputs[static_cast<std::size_t>(root)].data(), size)) << where;
  });
}

// promise: group#lanes-several-calls-at-a-time, group#two-ways, group.h#barrier
TEST_P(CollectivesOf, NobodyLeavesABarrierBeforeAllHaveEntered) {
  constexpr int kRounds = 200;
  std::vector<std::atomic<int>> entered(static_cast<std::size_t>(ranks()));
  run_thread_ranks(ranks(), [&](Job job) {
    const Group group(job);
    for (int round = 1; round <= kRounds; ++round) {
      entered[static_cast<std::size_t>(group.rank())].store(round, std::memory_order_relaxed);
      group.barrier();
      for (const auto& other : entered) ASSERT_GE(other.load(std::memory_order_relaxed), round);
    }
  });
}

TEST(Collectives, ReduceScatterAndGatherOfSixteenBitFloatsAndBools) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kPart = 20'003;
  const auto halves = random_inputs<model::Half>(kRanks, kPart * kRanks);
  const auto flags = random_inputs<bool>(kRanks, kPart * kRanks);
  const auto mean = reduced(halves, Reduction::mean);
  const auto any = reduced(flags, Reduction::logical_or);
  run_thread_ranks(kRanks, [&](Job job) {
    const Group group(job);
    const auto own = static_cast<std::size_t>(group.rank());
    Values<model::Half> half(kPart);
    group.reduce_scatter(view(halves[own]), view(half), Reduction::mean);
    EXPECT_TRUE(same_values(half.data(), mean.data() + group.rank() * kPart, kPart));
    Values<bool> flag(kPart);
    group.reduce_scatter(view(flags[own]), view(flag), Reduction::logical_or);
    EXPECT_TRUE(same_values(flag.data(), any.data() + group.rank() * kPart, kPart));
    Values<model::Half> all(kPart * kRanks);
    group.all_gather(view(half), view(all));
    EXPECT_TRUE(same_values(all.data(), mean.data(), kPart * kRanks));
  });
}

// promise: group#two-ways
TEST(Collectives, MixedKindsInARowShareTheStagingHalves) {
  constexpr int kRanks = 3;
  const std::int64_t size = kChunk + 77;
  const auto inputs = random_inputs<float>(kRanks, size);
  const auto sum = reduced(inputs, Reduction::sum);
  run_thread_ranks(kRanks, [&](Job job) {
    const Group group(job);
    const Values<float>& mine = inputs[static_cast<std::size_t>(group.rank())];
    const SharedMemory shared = group.allocate(mine.bytes(), "result");
    auto* const in_arena = reinterpret_cast<float*>(shared.data());
    Values<float> all(size * kRanks);
    Values<float> out(size);
    for (int round = 0; round < 12; ++round) {
      group.all_gather(view(mine), view(all));
      ASSERT_TRUE(same_values(all.data() + size, inputs[1].data(), size));
      std::copy_n(mine.data(), size, in_arena);
      group.all_reduce(view(in_arena, size), Reduction::sum);
      ASSERT_TRUE(same_values(in_arena, sum.data(), size));
      std::copy_n(mine.data(), size, in_arena);
      group.all_reduce(view(in_arena, size), view(out), Reduction::sum);
      ASSERT_TRUE(same_values(out.data(), sum.data(), size));
      std::copy_n(mine.data(), size, out.data());
      group.broadcast(view(out), round % kRanks);
      ASSERT_TRUE(
          same_values(out.data(), inputs[static_cast<std::size_t>(round % kRanks)].data(), size));
      group.reduce(view(mine), view(out), Reduction::sum, round % kRanks);
      ASSERT_TRUE(group.rank() != round % kRanks || same_values(out.data(), sum.data(), size));
    }
  });
}

}  // namespace
}  // namespace tutti::test
