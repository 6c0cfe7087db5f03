// What is refused before anything is sent, and what is refused by all because one cannot.

#include <functional>
#include <limits>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "job/arrivals.h"
#include "job/job_state.h"
#include "support/thread_ranks.h"
#include "support/wrapped_system.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

template <class Expected = InvalidArgument, class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Expected& e) {
    return e.what();
  }
  return "";
}

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

// promise: group#when-something-is-wrong
TEST(Counts, ThatOverflowAreRefused) {
  run_thread_ranks(4, [](const Job& job) {
    const Group group(job);
    double x = 1;
    const View none{&x, 0, DType::float64};
    const View huge{&x, kHuge, DType::float64};
    const View large{&x, std::int64_t{1} << 61, DType::float64};
    const View bytes{&x, std::numeric_limits<std::int64_t>::max(), DType::uint8};
    const char* const text = "are more than memory can hold";
    EXPECT_THAT(refusal_of([&] { group.reduce_scatter(none, huge, Reduction::sum); }),
                HasSubstr("reduce-scatter: 4611686018427387904 elements of float64 from each of 4 "
                          "members are more than memory can hold"));
    EXPECT_THAT(refusal_of([&] { group.all_reduce(large, Reduction::sum); }), HasSubstr(text));
    EXPECT_THAT(refusal_of([&] { group.all_reduce(bytes, Reduction::max); }), HasSubstr(text));
    EXPECT_THAT(
        refusal_of([&] { group.reduce(large, none, Reduction::sum, (job.rank() + 1) % 4); }),
        HasSubstr(text));
    EXPECT_THAT(refusal_of([&] { group.broadcast(huge, 0); }), HasSubstr(text));
    EXPECT_THAT(refusal_of([&] { group.all_gather(huge, none); }), HasSubstr(text));
    const std::vector<std::int64_t> counts(4, kHuge);
    EXPECT_THAT(refusal_of([&] { group.all_gather_variable(huge, none, counts); }),
                HasSubstr(text));
    // This member's own is small; only the sum overflows.
    std::vector<std::int64_t> others(4, kHuge);
    others[static_cast<std::size_t>(job.rank())] = 0;
    EXPECT_THAT(refusal_of([&] { group.all_gather_variable(none, none, others); }),
                HasSubstr("the members' counts add up to more than"));
    group.barrier();
  });
}

/// What all but one refuse, a call at that one's side alone can tell apart.
// promise: group.h#all_to_all, group.h#reduce_scatter_variable, group.h#scatter_variable
TEST(Counts, ThatDoNotFitTheirSpansAreRefused) {
  run_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    std::vector<float> x(20);
    const auto at = [&](std::int64_t first, std::int64_t count) {
      return View{x.data() + first, count, DType::float32};
    };
    const std::vector<std::int64_t> counts = {2, 3};
    const std::int64_t own = counts[static_cast<std::size_t>(job.rank())];
    const auto refused = [&](const std::function<void()>& call) { return refusal_of(call); };
    EXPECT_THAT(refused([&] { group.all_to_all(at(0, 5), at(5, 5)); }),
                HasSubstr("all-to-all: in has 5 elements, not a multiple of 2 members"));
    EXPECT_THAT(refused([&] { group.all_to_all(at(0, 4), at(5, 6)); }),
                HasSubstr("all-to-all: out has 6 elements, not 4"));
    EXPECT_THAT(refused([&] { group.all_to_all(at(0, 4), at(3, 4)); }),
                HasSubstr("in and out overlap"));
    EXPECT_THAT(refused([&] { group.all_to_all(at(0, 4), at(0, 4)); }),
                HasSubstr("in and out overlap"));
    EXPECT_THAT(refused([&] { group.all_to_all_variable(at(0, 4), counts, at(5, 5), counts); }),
                HasSubstr("in has 4 elements, but its counts add up to 5"));
    EXPECT_THAT(refused([&] { group.all_to_all_variable(at(0, 5), counts, at(5, 4), counts); }),
                HasSubstr("out has 4 elements, but its counts add up to 5"));
    const std::vector<std::int64_t> negative = {6, -1};
    for (const auto& wrong : {std::vector<std::int64_t>{}, {5}, {1, 1, 3}}) {
      const auto text = std::to_string(wrong.size()) + " counts for 2 members";
      EXPECT_THAT(refused([&] { group.all_to_all_variable(at(0, 5), wrong, at(5, 5), counts); }),
                  HasSubstr(text));
      EXPECT_THAT(refused([&] { group.all_to_all_variable(at(0, 5), counts, at(5, 5), wrong); }),
                  HasSubstr(text));
      EXPECT_THAT(refused([&] { group.all_gather_variable(at(0, own), at(5, 5), wrong); }),
                  HasSubstr(text));
      EXPECT_THAT(refused([&] { group.gather_variable(at(0, own), at(5, 5), wrong, 0); }),
                  HasSubstr(text));
      EXPECT_THAT(refused([&] { group.scatter_variable(at(5, 5), at(0, own), wrong, 0); }),
                  HasSubstr(text));
      EXPECT_THAT(refused([&] {
                    group.reduce_scatter_variable(at(5, 5), at(0, own), wrong, Reduction::sum);
                  }),
                  HasSubstr(text));
    }
    EXPECT_THAT(refused([&] { group.all_to_all_variable(at(0, 5), negative, at(5, 5), counts); }),
                HasSubstr("rank 1's count is -1"));
    EXPECT_THAT(refused([&] { group.gather_variable(at(0, own + 1), at(5, 5), counts, 0); }),
                HasSubstr("but this rank's count is"));
    EXPECT_THAT(refused([&] { group.gather(at(0, 2), at(5, 5), job.rank()); }),
                HasSubstr("gather: out has 5 elements, not 4"));
    EXPECT_THAT(refused([&] { group.gather(at(6, 2), at(5, 4), job.rank()); }),
                HasSubstr("not in the place that is allowed"));
    EXPECT_THAT(refused([&] { group.scatter(at(0, 5), at(5, 2), job.rank()); }),
                HasSubstr("scatter: in has 5 elements, but 2 parts of out's 2 are 4"));
    EXPECT_THAT(refused([&] { group.scatter_variable(at(0, 4), at(5, own), counts, job.rank()); }),
                HasSubstr("scatter: in has 4 elements, but the members' counts add up to 5"));
    for (const int root : {-1, 2}) {
      EXPECT_THAT(refused([&] { group.scatter(at(0, 4), at(5, 2), root); }),
                  HasSubstr("is not a rank of this group of 2"));
      EXPECT_THAT(refused([&] { group.gather(at(0, 2), at(5, 4), root); }),
                  HasSubstr("is not a rank of this group of 2"));
    }
    EXPECT_THAT(refused([&] { group.scatter(at(0, kHuge), at(5, kHuge / 2), job.rank()); }),
                HasSubstr("are more than memory can hold"));
    EXPECT_THAT(refused([&] { group.all_to_all(at(0, kHuge), at(0, kHuge)); }),
                HasSubstr("are more than memory can hold"));
    group.barrier();
  });
}

// The others are not told of it: they wait, and go on with the call that is right.
// promise: group#when-something-is-wrong, group.h#Group
TEST(BadCall, OthersWaitUntilItIsMadeAgainCorrectly) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    int x = 1 << job.rank();
    if (job.rank() == 1) {
      for (const int other : {0, 2}) poll_until_awaited(job, other, 1);
      EXPECT_NE(refusal_of([&] { group.all_reduce(view(&x, -1), Reduction::sum); }), "");
      for (const int other : {0, 2}) poll_until_awaited(job, other, 1);
    }
    group.all_reduce(view(&x, 1), Reduction::sum);
    EXPECT_EQ(x, 7);
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(BadCall, OthersWaitUntilTheWorkerEnds) {
  const ThreadOutcome outcome = try_thread_ranks(2, [](const Job& job) {
    const Group group(job);
    int x = 1;
    if (job.rank() == 1) {
      poll_until_awaited(job, 0, 1);
      return group.all_reduce(view(&x, -1), Reduction::sum);
    }
    EXPECT_THROW(group.all_reduce(view(&x, 1), Reduction::sum), PeerLost);
  });
  EXPECT_EQ(outcome.text(0), "");
  EXPECT_THAT(outcome.text(1), HasSubstr("a count is negative"));
}

/// A host on which the n-th mapping fails, counted from 1; 0: none does.
class FullAddressSpace final : public WrappedSystem {
 public:
  FullAddressSpace(std::shared_ptr<System> inner, int failing)
      : WrappedSystem(std::move(inner)), failing_(failing) {}
  std::shared_ptr<std::byte> map(const FileDescriptor& file, std::size_t bytes) override {
    if (++mapped_ == failing_) throw OutOfMemory("cannot map: no room in the address space");
    return WrappedSystem::map(file, bytes);
  }

 private:
  int failing_;
  int mapped_ = 0;
};

// Mappings of a rank: the board, the group's control memory, its own block, the others' blocks.
// promise: group#when-something-is-wrong, group.h#allocate
TEST(MemoryThatOneMemberCannotMap, IsRefusedByAllAlike) {
  constexpr int kRanks = 3;
  for (const int failing : {2, 3, 4, 5}) {
    const auto world = std::make_shared<ThreadWorld>(kRanks);
    std::vector<std::string> texts(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto system = std::make_shared<FullAddressSpace>(
            std::make_shared<ThreadSystem>(world, rank), rank == 1 ? failing : 0);
        const Job job(std::make_shared<JobState>(Identity{rank, kRanks}, system,
                                                 world->thread_rendezvous().rendezvous(rank),
                                                 JobOptions{}));
        std::optional<Group> group;
        texts[static_cast<std::size_t>(rank)] = refusal_of<OutOfMemory>([&] {
          group.emplace(job);
          static_cast<void>(group->allocate(5000, "slots"));
        });
        // It was one mapping: the next time it fits.
        if (!group) group.emplace(job, "again");
        const SharedMemory memory = group->allocate(400'000, "slots");
        auto* const x = reinterpret_cast<float*>(memory.data());
        std::fill(x, x + 100'000, 1.0f);
        group->all_reduce(view(x, 100'000), Reduction::sum);
        EXPECT_EQ(std::count(x, x + 100'000, 3.0f), 100'000);
        group->barrier();
      });
    }
    for (auto& thread : threads) thread.join();
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]) << failing;
    EXPECT_THAT(texts[0], HasSubstr("rank 1 could not"));
    EXPECT_THAT(texts[0], HasSubstr("no room in the address space"));
  }
}

}  // namespace
}  // namespace tutti::test
