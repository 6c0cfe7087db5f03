// A member that cannot go on says so, and nobody waits for it.

#include <gmock/gmock.h>

#include "comm/collective_cases.h"
#include "comm/on_hosts.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StrEq;

constexpr const char* kText =
    "rank 1 has failed, and with it group \"model\": the gradient of \"weight\" is not finite";

void expect_failed(const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "succeeded without rank 1";
  } catch (const PeerFailed& e) {
    EXPECT_EQ(e.rank(), 1);
    EXPECT_EQ(e.step(), 0);
    EXPECT_STREQ(e.what(), kText);
  }
}

/// `how` is what the others wait in.
void fail_while(const ThreadOptions& options, const std::function<void(const Group&, View)>& how,
                std::int64_t count) {
  const auto begin = Clock::now();
  run_thread_ranks(
      3,
      [&](const Job& job) {
        const Group group(job, "model");
        const Group world(job);
        Values<float> values(count);
        group.all_reduce(view(values), Reduction::sum);
        if (job.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the others wait
          group.fail("the gradient of \"weight\" is not finite");
          group.fail("and so on");
        } else {
          expect_failed([&] { how(group, view(values)); });
        }
        expect_failed([&] { group.barrier(); });
        world.barrier();
        const Group next(job, "model");
        next.all_reduce(view(values), Reduction::sum);
        EXPECT_EQ(values[count - 1], 0);
      },
      options);
  EXPECT_LT(Clock::now() - begin, seconds(20)) << "the deadline is a minute";
}

// promise: error.h#step, group.h#fail
TEST(FailedMember, IsToldToAllWhateverTheyWaitIn) {
  for (const auto& hosts : std::vector<std::vector<RankSet>>{{}, {{0, 1}, {2}}, {{0}, {1}, {2}}}) {
    const auto place = [&] { return hosts.empty() ? ThreadOptions{} : on(hosts); };
    for (const std::int64_t count : {5, 300'000}) {
      fail_while(
          place(), [](const Group& group, View x) { group.all_reduce(x, Reduction::sum); }, count);
      fail_while(
          place(), [](const Group& group, View x) { group.broadcast(x, 1); }, count);
      fail_while(
          place(),
          [](const Group& group, View x) {
            auto work = group.start().all_reduce(x, x, Reduction::sum);
            while (!work.done()) std::this_thread::yield();
            work.wait();
          },
          count);
    }
  }
}

// promise: group.h#fail
TEST(FailedMember, OfAGroupThatHasEndedChangesNothing) {
  const auto outcome = try_thread_ranks(2, [](const Job& job) {
    const Group group(job, "model");
    float x = 0;
    try {
      if (job.rank() == 0) group.all_reduce(view(&x, 1), Reduction::sum);
      if (job.rank() == 1) group.broadcast(view(&x, 1), 0);
    } catch (const Mismatch&) {
      group.fail("because of that");
      group.barrier();
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_THROW(std::rethrow_exception(outcome.errors[static_cast<std::size_t>(rank)]), Mismatch);
  }
}

}  // namespace
}  // namespace tutti::test
