// What becomes of a call, or of a step, for the member that comes too late: ranks are threads.

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/local/operation.h"
#include "job/job_state.h"
#include "support/slow_blame.h"
#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr std::int64_t kSentCount = 30'000;

struct LateCase {
  const char* name;
  OperationKind kind;
  bool in_place;
  bool polls;
};

class LateMember : public ::testing::TestWithParam<LateCase> {};
INSTANTIATE_TEST_SUITE_P(
    Calls, LateMember,
    ::testing::Values(LateCase{"all_reduce", OperationKind::all_reduce, true, false},
                      LateCase{"all_reduce_polled", OperationKind::all_reduce, true, true},
                      LateCase{"all_reduce_staged", OperationKind::all_reduce, false, false},
                      LateCase{"reduce", OperationKind::reduce, true, false},
                      LateCase{"reduce_scatter", OperationKind::reduce_scatter, true, false},
                      LateCase{"all_gather", OperationKind::all_gather, true, false},
                      LateCase{"gather", OperationKind::gather, true, false},
                      LateCase{"scatter", OperationKind::scatter, true, false},
                      LateCase{"all_to_all", OperationKind::all_to_all, true, false},
                      LateCase{"all_to_all_polled", OperationKind::all_to_all, true, true},
                      LateCase{"broadcast", OperationKind::broadcast, true, false},
                      LateCase{"broadcast_polled", OperationKind::broadcast, true, true}),
    [](const auto& of) { return of.param.name; });

Work start(const Group& group, OperationKind kind, float* in, float* out, milliseconds deadline) {
  const CollectiveOptions options{.label = "weight", .deadline = deadline};
  switch (kind) {
    case OperationKind::all_reduce:
      return group.start().all_reduce(view(in, kSentCount), view(out, kSentCount), Reduction::sum,
                                      options);
    case OperationKind::reduce:
      return group.start().reduce(view(in, kSentCount), view(out, kSentCount), Reduction::sum, 0,
                                  options);
    case OperationKind::reduce_scatter:
      return group.start().reduce_scatter(view(in, kSentCount * group.size()),
                                          view(out, kSentCount), Reduction::sum, options);
    case OperationKind::all_gather:
      return group.start().all_gather(view(in, kSentCount), view(out, kSentCount * group.size()),
                                      options);
    case OperationKind::broadcast:
      return group.start().broadcast(view(in, kSentCount), 0, options);
    case OperationKind::gather:
      return group.start().gather(view(in, kSentCount), view(out, kSentCount * group.size()),
                                  group.size() - 1, options);
    case OperationKind::scatter:
      return group.start().scatter(view(in, kSentCount * group.size()), view(out, kSentCount), 0,
                                   options);
    case OperationKind::all_to_all:
      return group.start().all_to_all(view(in, kSentCount * group.size()),
                                      view(out, kSentCount * group.size()), options);
    case OperationKind::message:
    case OperationKind::barrier:
      break;
  }
  return group.start().barrier(options);
}

// The others have left the call at their deadline, and use their memory again.
// promise: errors#who-is-told-what-when-it-is-close, group#when-something-is-wrong
TEST_P(LateMember, OfATimedOutCallIsToldSo) {
  const LateCase way = GetParam();
  for (const int ranks : {2, 3}) {
    std::atomic<int> left{0};
    run_thread_ranks(ranks, [&](const Job& job) {
      const Group group(job);
      const bool late = job.rank() == ranks - 1;
      const auto room = static_cast<std::size_t>(kSentCount * ranks);
      const SharedMemory memory = group.allocate(2 * room * sizeof(float));
      std::vector<float> own(2 * room);
      float* const in = way.in_place ? reinterpret_cast<float*>(memory.data()) : own.data();
      std::fill(in, in + 2 * room, 1.0f);
      Work work = start(group, way.kind, in, in + room, late ? seconds(60) : milliseconds(150));
      if (!late) {
        try {
          work.wait();
          // Who does not give waits for nobody but the root.
          EXPECT_TRUE(is_from_root(way.kind) && job.rank() != 0);
        } catch (const Timeout&) {
        }
        std::fill(in, in + 2 * room, 1000.0f);
        ++left;
        return;
      }
      poll_until([&] { return left == ranks - 1; });
      while (way.polls && !work.done()) std::this_thread::yield();
      try {
        work.wait();
        ADD_FAILURE() << "a call that has timed out for the others succeeded";
      } catch (const Timeout& e) {
        EXPECT_THAT(e.what(), HasSubstr("has not reached"));
        EXPECT_THAT(e.what(), HasSubstr("(found by rank "));
      }
    });
  }
}

// All have arrived, so the others went on, and gave up in the next call.
// promise: errors#who-is-told-what-when-it-is-close, group#two-ways
TEST(LateMember, OfACallThatSucceededForTheOthersGetsItsResult) {
  for (const bool polls : {false, true}) {
    std::atomic<int> left{0};
    run_thread_ranks(3, [&](const Job& job) {
      const Group group(job);
      const bool late = job.rank() == 2;
      float x = static_cast<float>(1 << job.rank());
      Work first = group.start().all_reduce(view(&x, 1), view(&x, 1), Reduction::sum);
      if (late) {
        poll_until([&] { return left == 2; });
        while (polls && !first.done()) std::this_thread::yield();
        EXPECT_NO_THROW(first.wait());
      } else {
        first.wait();
        EXPECT_THROW(group.barrier({.deadline = milliseconds(100)}), Timeout);
        ++left;
      }
      EXPECT_EQ(x, 7);
      EXPECT_THROW(group.barrier(), Timeout);
    });
  }
}

// Between the last look of the member that gives up and its word that the group has ended.
// promise: errors#who-is-told-what-when-it-is-close
TEST(LateMember, WhoComesAtTheMomentOfTheTimeoutEndsLikeTheOthers) {
  for (const bool in_place : {true, false}) {
    for (const bool polls : {false, true}) {
      const auto world = std::make_shared<ThreadWorld>(2);
      std::atomic<bool> blaming{false};
      std::atomic<bool> go{false};
      const auto run = [&](int rank) {
        std::unique_ptr<Rendezvous> rendezvous = world->thread_rendezvous().rendezvous(rank);
        if (rank == 0) {
          rendezvous = std::make_unique<SlowBlame>(std::move(rendezvous), blaming, go);
        }
        const Job job(std::make_shared<JobState>(Identity{rank, 2},
                                                 std::make_shared<ThreadSystem>(world, rank),
                                                 std::move(rendezvous), JobOptions{}));
        const Group group(job);
        const SharedMemory memory = group.allocate(kSentCount * sizeof(float));
        std::vector<float> own(kSentCount);
        float* const x = in_place ? reinterpret_cast<float*>(memory.data()) : own.data();
        std::fill(x, x + kSentCount, static_cast<float>(rank + 1));
        Work work = start(group, OperationKind::all_reduce, x, x,
                          rank == 0 ? milliseconds(100) : milliseconds(60'000));
        if (rank == 1) poll_until([&] { return blaming.load(); });
        while (polls && !work.done()) std::this_thread::yield();
        EXPECT_NO_THROW(work.wait()) << "rank " << rank;
        EXPECT_EQ(std::accumulate(x, x + kSentCount, 0.0), 3.0 * kSentCount) << "rank " << rank;
        go = true;
        // From the next call on the group has ended for both.
        EXPECT_THROW(group.barrier(), Timeout) << "rank " << rank;
      };
      std::thread other([&] { run(1); });
      run(0);
      other.join();
    }
  }
}

// Who only hears of a deadline has blamed nobody: it was then called the first that failed.
// findings-3: C1
TEST(LateMember, WhoHearsOfATimeoutBlamesTooAndSoDoesWhoHearsOfAFailure) {
  for (const bool by_timeout : {true, false}) {
    std::atomic<bool> has_heard{false};
    ThreadOptions options;
    options.world = std::make_shared<ThreadWorld>(3);
    const auto outcome = try_thread_ranks(
        3,
        [&](const Job& job) {
          const Group group(job);
          group.barrier();
          if (job.rank() == 2) {
            while (!has_heard) std::this_thread::sleep_for(milliseconds(1));
            return;
          }
          if (job.rank() == 0) {
            if (by_timeout) group.barrier({.label = {}, .deadline = milliseconds(500)});
            group.fail("no more");
            return;
          }
          try {
            group.barrier();
          } catch (const Error&) {
            has_heard = true;
            throw;
          }
        },
        options);
    EXPECT_THAT(outcome.text(1), HasSubstr(by_timeout ? "found by rank 0" : "rank 0 has failed"));
    std::vector<std::pair<int, int>> blames;
    for (const Blame& blame : options.world->blames())
      blames.emplace_back(blame.rank, blame.culprit);
    EXPECT_THAT(blames, ::testing::Contains(std::pair(1, 0)));
    if (by_timeout) {
      EXPECT_THAT(blames, ::testing::Contains(std::pair(0, 2)));
    }
  }
}

}  // namespace
}  // namespace tutti::test
