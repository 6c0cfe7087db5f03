// How members learn why a group has ended from one that takes its time to say so.

#include "comm/local/ending.h"

#include <gmock/gmock.h>

#include <thread>

#include "job/wait.h"
#include "support/thread_ranks.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(Ending, writer_that_is_suspended_within_its_reason_is_waited_for) {
  Ending ending{};
  std::atomic<bool> begun{false};
  run_thread_ranks(2, [&](const Job& job) {
    if (job.rank() == 1) {
      ending.state = Ending::being_written + 1;
      begun = true;
      std::this_thread::sleep_for(milliseconds(500));
      ending.kind = static_cast<std::uint32_t>(EndingKind::timeout);
      ending.found_by = 1;
      write(ending.text, "rank 0 has not reached barrier");
      ending.state = Ending::written;
      announce(job.state()->board());
      return;
    }
    while (!begun) std::this_thread::yield();
    const EndingReason reason = reason_of(ending, *job.state());
    EXPECT_EQ(reason.kind, EndingKind::timeout);
    EXPECT_EQ(reason.found_by, 1);
    EXPECT_EQ(reason.text, "rank 0 has not reached barrier");
  });
}

// promise: errors#who-is-told-what-when-it-is-close
TEST(Ending, writer_that_ends_within_its_reason_is_lost) {
  ThreadOptions options;
  options.world = std::make_shared<ThreadWorld>(2);
  Ending ending{};
  std::atomic<bool> over{false};
  run_thread_ranks(
      2,
      [&](const Job& job) {
        if (job.rank() == 1) {
          ending.state = Ending::being_written + 1;
          options.world->kill(1);
          while (!over) std::this_thread::yield();
          return;
        }
        while (is_open(ending)) std::this_thread::yield();
        try {
          reason_of(ending, *job.state());
          ADD_FAILURE() << "there is no reason";
        } catch (const PeerLost& lost) {
          EXPECT_EQ(lost.rank(), 1);
          EXPECT_THAT(lost.what(),
                      HasSubstr("rank 1 ended before reaching the reason why the group"));
        }
        over = true;
      },
      options);
}

// promise: group#when-something-is-wrong
TEST(Ending, first_reason_stays) {
  run_thread_ranks(1, [](const Job& job) {
    Ending ending{};
    EXPECT_TRUE(is_open(ending));
    end_with(*job.state(), ending, {.kind = EndingKind::mismatch, .found_by = 63, .text = "first"},
             2, [](int lane) { return lane == 0 ? 5U : 7U; });
    end_with(*job.state(), ending, {.kind = EndingKind::timeout, .found_by = 0, .text = "second"},
             2, [](int) { return 6U; });
    EXPECT_FALSE(is_open(ending));
    const EndingReason reason = reason_of(ending, *job.state());
    EXPECT_EQ(reason.kind, EndingKind::mismatch);
    EXPECT_EQ(reason.found_by, 63);
    EXPECT_EQ(reason.first_failed[0], 5U);
    EXPECT_EQ(reason.first_failed[1], 7U);
    EXPECT_EQ(reason.text, "first");
  });
}

}  // namespace
}  // namespace tutti::test
