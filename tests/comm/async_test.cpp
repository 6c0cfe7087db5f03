#include <gtest/gtest.h>

#include "comm/collective_cases.h"
#include "comm/lengths.h"
#include "comm/local/control_arena.h"
#include "support/log_capture.h"

namespace tutti::test {
namespace {

/// The size of operation i of a series: empty, small, crossing, chunked.
std::int64_t size_of_call(int i) {
  constexpr std::int64_t kSizes[] = {5, 0, 9000, 64, kLarge, 1, 30'000};
  return kSizes[i % 7];
}

class AsyncOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AsyncOf, ::testing::Values(1, 2, 3, 5));

/// More are started than can be under way; every rank waits in an order of its own.
// promise: group#two-ways, group#waiting-and-what-started-means, group.h#wait
TEST_P(AsyncOf, ManyStartedAndWaitedForInAnyOrder) {
  const int ranks = GetParam();
  constexpr int kCalls = 3 * kRing;
  std::vector<std::vector<Values<float>>> inputs;
  std::vector<Values<float>> wanted;
  for (int i = 0; i < kCalls; ++i) {
    inputs.push_back(
        random_inputs<float>(ranks, size_of_call(i), static_cast<std::uint64_t>(i + 1)));
    wanted.push_back(reduced(inputs.back(), Reduction::sum));
  }
  run_thread_ranks(ranks, [&](Job job) {
    const Group group(job);
    const auto own = static_cast<std::size_t>(group.rank());
    for (int round = 0; round < 3; ++round) {
      std::vector<Values<float>> out;
      std::vector<Work> works;
      for (std::size_t i = 0; i < kCalls; ++i) {
        out.emplace_back(size_of_call(static_cast<int>(i)));
        works.push_back(
            group.start().all_reduce(view(inputs[i][own]), view(out[i]), Reduction::sum));
      }
      std::vector<std::size_t> order(kCalls);
      for (std::size_t i = 0; i < kCalls; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), std::mt19937(own + 10));
      for (const std::size_t i : order) {
        works[i].wait();
        ASSERT_TRUE(works[i].done());
        ASSERT_TRUE(same_values(out[i].data(), wanted[i].data(), out[i].count())) << "call " << i;
      }
    }
  });
}

// promise: group#waiting-and-what-started-means, group.h#Work
TEST_P(AsyncOf, PollingAloneBringsThemToAnEnd) {
  const int ranks = GetParam();
  const auto small = random_inputs<float>(ranks, 100);
  const auto large = random_inputs<float>(ranks, kLarge * 2);
  const auto small_sum = reduced(small, Reduction::sum);
  const auto large_sum = reduced(large, Reduction::sum);
  run_thread_ranks(ranks, [&](Job job) {
    const Group group(job);
    const auto own = static_cast<std::size_t>(group.rank());
    Values<float> a(100);
    Values<float> b(kLarge * 2);
    Values<float> all(kLarge * 2 * ranks);
    Work first = group.start().all_reduce(view(small[own]), view(a), Reduction::sum);
    Work second = group.start().all_reduce(view(large[own]), view(b), Reduction::sum);
    Work third = group.start().all_gather(view(large[own]), view(all));
    Work fourth = group.start().barrier();
    while (!fourth.done()) std::this_thread::yield();
    EXPECT_TRUE(first.done() && second.done() && third.done());
    EXPECT_TRUE(same_values(a.data(), small_sum.data(), 100));
    EXPECT_TRUE(same_values(b.data(), large_sum.data(), b.count()));
    EXPECT_TRUE(same_values(all.data(), large[0].data(), kLarge * 2));
  });
}

// promise: group.h#start
TEST(Async, EveryKindCanBeStarted) {
  constexpr int kRanks = 3;
  const auto inputs = random_inputs<float>(kRanks, 30);
  const auto sum = reduced(inputs, Reduction::sum);
  run_thread_ranks(kRanks, [&](Job job) {
    const Group group(job);
    const auto own = static_cast<std::size_t>(group.rank());
    Values<float> root_only(30), part(10), joined(90), unequal(6), sent(30);
    std::copy_n(inputs[own].data(), 30, sent.data());
    const std::vector<std::int64_t> counts = {1, 2, 3};
    Work a = group.start().reduce(view(inputs[own]), view(root_only), Reduction::sum, 1);
    Work b = group.start().reduce_scatter(view(inputs[own]), view(part), Reduction::sum);
    Work c = group.start().all_gather(view(inputs[own]), view(joined));
    // The counts may go once the call has been started.
    Work d = group.start().all_gather_variable({inputs[own].data(), counts[own], DType::float32},
                                               view(unequal), std::vector<std::int64_t>(counts));
    Work e = group.start().broadcast(view(sent), 2);
    Work f = group.start().barrier();
    f.wait();
    EXPECT_TRUE(group.rank() != 1 || same_values(root_only.data(), sum.data(), 30));
    EXPECT_TRUE(same_values(part.data(), sum.data() + 10 * group.rank(), 10));
    EXPECT_TRUE(same_values(joined.data() + 60, inputs[2].data(), 30));
    EXPECT_TRUE(same_values(unequal.data() + 3, inputs[2].data(), 3));
    EXPECT_TRUE(same_values(sent.data(), inputs[2].data(), 30));
  });
}

// promise: group#waiting-and-what-started-means, group.h#done, group.h#start
TEST(Async, StartDoesNotWaitForOthers) {
  run_thread_ranks(2, [](Job job) {
    const Group group(job);
    const Group order(job, "order");
    float x = 1;
    if (group.rank() == 0) {
      Work work = group.start().all_reduce(view(&x, 1), view(&x, 1), Reduction::sum);
      EXPECT_FALSE(work.done());
      order.barrier();  // the other starts only after this
      work.wait();
    } else {
      order.barrier();
      group.all_reduce(view(&x, 1), Reduction::sum);
    }
    EXPECT_EQ(x, 2);
  });
}

// promise: group#waiting-and-what-started-means, group.h#Work
TEST(Async, DestroyedOrReplacedWorkIsWaitedFor) {
  run_thread_ranks(2, [](Job job) {
    const Group group(job);
    float x = 1, y = 2, z = 3;
    { const Work dropped = group.start().all_reduce(view(&x, 1), view(&x, 1), Reduction::sum); }
    EXPECT_EQ(x, 2);
    Work work = group.start().all_reduce(view(&y, 1), view(&y, 1), Reduction::sum);
    work = group.start().all_reduce(view(&z, 1), view(&z, 1), Reduction::sum);
    EXPECT_EQ(y, 4);
    Work moved = std::move(work);
    work.wait();  // has nothing left to wait for
    EXPECT_TRUE(work.done());
    moved.wait();
    moved.wait();
    EXPECT_EQ(z, 6);
    EXPECT_TRUE(Work().done());
  });
}

TEST(Async, WorkOutlivesItsGroupHandle) {
  run_thread_ranks(3, [](Job job) {
    float x = 1;
    Work work;
    {
      const Group group(job);
      work = group.start().all_reduce(view(&x, 1), view(&x, 1), Reduction::sum);
    }
    work.wait();
    EXPECT_EQ(x, 3);
  });
}

// promise: group#waiting-and-what-started-means
TEST(Async, GroupsAreIndependent) {
  // Rank 0 waits in one order, rank 1 in the other: no deadlock, because both were started.
  run_thread_ranks(2, [](Job job) {
    const Group a(job, "a");
    const Group b(job, "b");
    float x = 1, y = 10;
    Work first = a.start().all_reduce(view(&x, 1), view(&x, 1), Reduction::sum);
    Work second = b.start().all_reduce(view(&y, 1), view(&y, 1), Reduction::sum);
    if (job.rank() == 0) {
      first.wait();
      second.wait();
    } else {
      second.wait();
      first.wait();
    }
    EXPECT_EQ(x, 2);
    EXPECT_EQ(y, 20);
  });
}

// promise: group#waiting-and-what-started-means
TEST(Async, AWorkThatFailsWhileDestroyedSaysSoInTheLog) {
  const LogCapture log;
  run_thread_ranks(2, [](Job job) {
    const Group group(job);
    float x = 1;
    {
      const Work dropped = group.start().all_reduce(view(&x, 1), view(&x, 1), Reduction::sum,
                                                    {.label = job.rank() == 0 ? "one" : "two"});
    }
    EXPECT_THROW(group.barrier(), Mismatch);
  });
  EXPECT_EQ(log.count("a collective that nobody waited for failed"), 2);
}

}  // namespace
}  // namespace tutti::test
