#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/group_state.h"
#include "comm/local/control_arena.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Expected = InvalidArgument, class Call>
std::string bad_input_of(Call&& call) {
  try {
    call();
  } catch (const Expected& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

int sum_of_ranks(const Group& group, int job_rank) {
  int x = job_rank;
  group.all_reduce(view(&x, 1), Reduction::sum);
  return x;
}

TEST(Group, OfOneNeedsNobody) {
  run_thread_ranks(1, [](Job job) {
    const Group group(job);
    EXPECT_EQ(group.rank(), 0);
    EXPECT_EQ(group.size(), 1);
    std::vector<float> x(300'000, 3.0f);
    group.all_reduce(view(x.data(), 300'000), Reduction::mean);
    EXPECT_EQ(x[299'999], 3.0f);
    const Group half = group.split(4, "half");
    EXPECT_EQ(half.size(), 1);
    const SharedMemory memory = half.allocate(100);
    EXPECT_EQ(memory.data()[99], std::byte{0});
  });
}

// promise: group.h#job_rank, group.h#rank, group.h#split
TEST(Group, SplitByColourKeepsTheOrder) {
  run_thread_ranks(5, [](Job job) {
    const Group world(job);
    const Group half = world.split(job.rank() % 2 == 0 ? -7 : 12, "half");
    EXPECT_EQ(half.name(), "half");
    EXPECT_EQ(half.size(), job.rank() % 2 == 0 ? 3 : 2);
    EXPECT_EQ(half.rank(), job.rank() / 2);
    EXPECT_EQ(half.job_rank(half.rank()), job.rank());
    EXPECT_EQ(sum_of_ranks(half, job.rank()), job.rank() % 2 == 0 ? 6 : 4);
    const Group again = half.split(0, "again");
    EXPECT_EQ(sum_of_ranks(again, job.rank()), job.rank() % 2 == 0 ? 6 : 4);
    EXPECT_EQ(sum_of_ranks(world, 1), 5);
  });
}

// promise: errors#when-a-worker-dies, group.h#rank
TEST(Group, OfSomeRanks) {
  run_thread_ranks(4, [](Job job) {
    if (job.rank() != 2) {
      const Group some(job, {0, 1, 3}, "some");
      EXPECT_THAT(some.state()->ranks(), ElementsAre(0, 1, 3));
      EXPECT_EQ(sum_of_ranks(some, job.rank()), 4);
      EXPECT_EQ(some.state()->members(), (RankSet{0, 1, 3}));
    }
    // The same name again, and once more over other ranks, are groups of their own.
    const Group all(job, "some");
    EXPECT_EQ(sum_of_ranks(all, job.rank()), 6);
    const Group twice(job, "some");
    EXPECT_EQ(sum_of_ranks(twice, job.rank()), 6);
  });
}

// promise: group.h#Group
TEST(Group, RanksThatMakeNoGroupAreRefused) {
  run_thread_ranks(3, [](Job job) {
    const auto make = [&](std::vector<int> ranks) {
      return bad_input_of([&] { const Group group(job, std::move(ranks), "odd"); });
    };
    const int me = job.rank();
    EXPECT_EQ(make({}), "group \"odd\" of ranks []: no ranks are given");
    EXPECT_THAT(make({me, me}), HasSubstr("ascending, each given once"));
    EXPECT_THAT(make({2, 1, 0}), HasSubstr("group \"odd\" of ranks [2 1 0]: ranks must be ascend"));
    EXPECT_THAT(make({me, 3}), HasSubstr("rank 3 is not in this job of 3"));
    EXPECT_THAT(make({-1, me}), HasSubstr("rank -1 is not in this job of 3"));
    EXPECT_THAT(make({(me + 1) % 3}), HasSubstr("is not among them"));
    EXPECT_THAT(bad_input_of([&] { const Group group(job, ""); }), HasSubstr("needs a name"));
    EXPECT_EQ(sum_of_ranks(Group(job, "odd"), 1), 3);
  });
}

// promise: error.h#InvalidArgument, group.h#all_gather_variable, group.h#all_reduce
TEST(Group, BadCallsAreRefusedAndLeaveItUsable) {
  run_thread_ranks(2, [](Job job) {
    const Group group(job);
    float x[8] = {};
    float y[8] = {};
    std::int32_t n[4] = {};
    bool flags[4] = {};
    const CollectiveOptions options{.label = "w"};
    const auto refused = [&](auto&& call) { return bad_input_of(call); };
    const View vx = view(x, 4);
    EXPECT_EQ(refused([&] { group.all_reduce(vx, Reduction::logical_and, options); }),
              "all-reduce \"w\": logical_and of float32 is not defined");
    EXPECT_EQ(refused([&] { group.all_reduce(view(n, 4), Reduction::mean); }),
              "all-reduce: mean of int32 is not defined");
    EXPECT_THAT(refused([&] { group.all_reduce(view(flags, 4), Reduction::sum); }),
                HasSubstr("sum of bool"));
    EXPECT_EQ(refused([&] { group.all_reduce(vx, view(y, 3), Reduction::sum); }),
              "all-reduce: out has 3 elements, not 4");
    EXPECT_EQ(refused([&] { group.all_reduce(vx, view(n, 4), Reduction::sum); }),
              "all-reduce: in is float32, out is int32");
    EXPECT_EQ(refused([&] { group.all_reduce(view(x, -1), Reduction::sum); }),
              "all-reduce: a count is negative");
    EXPECT_EQ(refused([&] {
                group.all_reduce(View{nullptr, 4, DType::float32}, Reduction::sum);
              }),
              "all-reduce: in is a null pointer");
    EXPECT_THAT(refused([&] {
                  group.all_reduce(vx, View{nullptr, 4}, Reduction::sum);
                }),
                HasSubstr("out is a null pointer"));
    EXPECT_EQ(refused([&] { group.all_reduce(vx, view(x + 1, 4), Reduction::sum); }),
              "all-reduce: in and out overlap, and not in the place that is allowed");
    EXPECT_EQ(refused([&] { group.reduce(vx, view(y, 4), Reduction::sum, 2); }),
              "reduce: root 2 is not a rank of this group of 2");
    EXPECT_THAT(refused([&] { group.broadcast(vx, -1); }), HasSubstr("broadcast: root -1"));
    EXPECT_EQ(refused([&] { group.reduce_scatter(view(x, 5), view(y, 2), Reduction::sum); }),
              "reduce-scatter: in has 5 elements, but 2 parts of out's 2 are 4");
    EXPECT_THAT(refused([&] {
                  group.reduce_scatter(view(x, 4), view(x + 2 * (1 - group.rank()), 2),
                                       Reduction::sum);
                }),
                HasSubstr("overlap"));
    EXPECT_EQ(refused([&] { group.all_gather(vx, view(y, 7)); }),
              "all-gather: out has 7 elements, not 8");
    const std::vector<std::int64_t> counts = {1, 2};
    EXPECT_EQ(refused([&] { group.all_gather_variable(view(x, 4), view(y, 3), counts); }),
              "all-gather: in has 4 elements, but this rank's count is " +
                  std::to_string(counts[static_cast<std::size_t>(group.rank())]));
    EXPECT_THAT(
        refused([&] { group.all_gather_variable(vx, view(y, 3), std::vector<std::int64_t>{4}); }),
        HasSubstr("1 counts for 2 members"));
    EXPECT_THAT(refused([&] {
                  group.all_gather_variable(vx, view(y, 3), std::vector<std::int64_t>{-1, 4});
                }),
                HasSubstr("rank 0's count is -1"));
    for (const int time : {0, -5}) {
      EXPECT_EQ(refused([&] { group.barrier({.deadline = std::chrono::milliseconds(time)}); }),
                "barrier: a deadline of " + std::to_string(time) + " ms is not positive");
    }
    EXPECT_THAT(refused([&] {
                  const Work work = group.start().all_reduce(vx, view(y, 3), Reduction::sum);
                }),
                HasSubstr("out has 3 elements"));
    EXPECT_EQ(sum_of_ranks(group, 1), 2);
  });
}

// promise: group#messages-between-two-members, group#when-something-is-wrong
TEST(Group, TakesAboutTwoMebibytesForEachMember) {
  for (const int members : {1, 2, 3, 8, 64}) {
    const double each = static_cast<double>(ControlArena::bytes(members)) / members;
    EXPECT_NEAR(each / (1 << 20), 2, 0.25) << members;
  }
}

// promise: group#when-something-is-wrong
TEST(Group, ControlMemoryThatDoesNotFitIsRefusedOnAll) {
  ThreadOptions options;
  options.memory_bounds = [] {
    return std::vector<MemoryBound>{{.owner = "machine", .limit = 1 << 20, .available = 100'000}};
  };
  for (const int members : {1, 2}) {
    run_thread_ranks(
        members,
        [](Job job) {
          EXPECT_THAT(bad_input_of<OutOfMemory>([&] { const Group group(job); }),
                      HasSubstr("the control memory of group \"world\" needs"));
        },
        options);
  }
}

}  // namespace
}  // namespace tutti::test
