// Groups of more workers than one host may have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "comm/collective_cases.h"
#include "comm/group_state.h"
#include "support/many_workers.h"
#include "support/text_of.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

/// Every collective, by the scalar model. Rank r's input is number r.
template <class T>
void expect_collectives(const Group& group, const std::vector<Values<T>>& inputs) {
  const int size = group.size();
  const auto count = inputs[0].count();
  const auto& mine = inputs[static_cast<std::size_t>(group.rank())];
  Values<T> out(count);
  for (const auto reduction : {Reduction::sum, Reduction::mean, Reduction::max}) {
    if (std::is_integral_v<T> && reduction == Reduction::mean) continue;
    const auto expected = reduced(inputs, reduction);
    group.all_reduce(view(mine), view(out), reduction);
    EXPECT_TRUE(same_values(out.data(), expected.data(), count));
    group.reduce(view(mine), view(out), reduction, size - 1);
    if (group.rank() == size - 1) {
      EXPECT_TRUE(same_values(out.data(), expected.data(), count));
    }
  }
  Values<T> all(count * size);
  group.all_gather(view(mine), view(all));
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(same_values(all.data() + rank * count,
                            inputs[static_cast<std::size_t>(rank)].data(), count));
  }
  // Rank r gives its input, turned by the receiver's rank, to each.
  const auto turned = [&](int giver, int receiver) {
    Values<T> part(count);
    for (std::int64_t i = 0; i < count; ++i) {
      part[i] = inputs[static_cast<std::size_t>(giver)][(i + receiver) % count];
    }
    return part;
  };
  std::vector<Values<T>> parts;
  for (int receiver = 0; receiver < size; ++receiver) {
    const auto part = turned(group.rank(), receiver);
    std::copy(part.data(), part.data() + count, all.data() + receiver * count);
    parts.push_back(turned(receiver, group.rank()));
  }
  group.reduce_scatter(view(all), view(out), Reduction::sum);
  EXPECT_TRUE(same_values(out.data(), reduced(parts, Reduction::sum).data(), count));
  Values<T> sent(count);
  if (group.rank() == size - 1) std::copy(mine.data(), mine.data() + count, sent.data());
  group.broadcast(view(sent), size - 1);
  EXPECT_TRUE(same_values(sent.data(), inputs.back().data(), count));
  group.barrier();
}

template <class T>
void expect_collectives(int hosts, int each, std::int64_t count) {
  const auto inputs = random_inputs<T>(hosts * each, count);
  run_thread_ranks(
      hosts * each, [&](const Job& job) { expect_collectives(Group(job), inputs); },
      many_workers(hosts, each));
}

// promise: clusters#several-hosts
TEST(ManyWorkers, OfTwoHostsHaveTheBytesOfTheTree) {
  if (kSanitized) GTEST_SKIP() << "too many threads for a sanitizer";
  expect_collectives<float>(2, 40, 5);
  expect_collectives<model::BFloat>(2, 40, 700);
}

TEST(ManyWorkers, OfNineHostsHaveTheBytesOfTheTree) {
  if (kSanitized) GTEST_SKIP() << "too many threads for a sanitizer";
  expect_collectives<float>(9, 8, 3);
  expect_collectives<double>(9, 8, 3000);
  expect_collectives<std::int32_t>(9, 8, 65);
}

TEST(ManyWorkers, OfSixteenHostsAre128) {
  if (kSanitized) GTEST_SKIP() << "too many threads for a sanitizer";
  expect_collectives<float>(16, 8, 17);
}

TEST(ManyWorkers, OfAHostHaveGroupsOfTheirOwnAndNoneOf65Is) {
  run_thread_ranks(
      70,
      [&](const Job& job) {
        const Group all(job);
        const Group here = all.split(all.state()->host_of(all.rank()), "here");
        EXPECT_EQ(here.size(), 35);
        std::int32_t sum = job.rank();
        here.all_reduce(View{&sum, 1, DType::int32}, Reduction::sum);
        EXPECT_EQ(sum, job.rank() < 35 ? 34 * 35 / 2 : 34 * 35 / 2 + 35 * 35);
      },
      many_workers(2, 35));
  EXPECT_EQ(text_of([] { even_hosts(65, 1); }), "host 0 has 65 workers: must be 1 to 64");
}

TEST(ManyWorkers, AreNamedAsRanges) {
  const ThreadOptions options = many_workers(3, 24);
  const std::chrono::seconds until_all_are_there{kSanitized ? 20 : 3};
  std::atomic<int> ended{0};
  const auto outcome = try_thread_ranks(
      72,
      [&](const Job& job) {
        const Group group(job);
        while (job.rank() == 30 && ended < 71) std::this_thread::yield();
        if (job.rank() == 30) return;
        try {
          group.barrier({.deadline = until_all_are_there});
        } catch (const Timeout&) {
          ++ended;
          throw;
        }
        ++ended;
      },
      options);
  EXPECT_THAT(outcome.text(0), ::testing::HasSubstr("rank 30 has not reached barrier"));
  EXPECT_THAT(outcome.text(0), ::testing::HasSubstr("ranks 0-29 31-71 are there"));
}

}  // namespace
}  // namespace tutti::test
