// A worker that ends while others meet it at the rendezvous, and whose socket somebody else still
// holds, as a shell around the program or a child made by fork does.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>

#include "arrivals.h"
#include "job/gather.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "support/process_ranks.h"
#include "support/shared_between_processes.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::seconds;

struct Shared {
  std::atomic<std::int64_t> ended_at{0};
  std::atomic<std::int64_t> longest{0};  ///< ns from the end to the last error
  std::atomic<bool> over{false};
};

/// What forked ranks share; its end is that of the children they leave.
struct SharedFate : SharedBetweenProcesses<Shared> {
  ~SharedFate() { get()->over = true; }
};

std::int64_t count_now() { return Clock::now().time_since_epoch().count(); }

/// Ends this process, but not a child of it that has all its descriptors except the test's own.
[[noreturn]] void end_under_a_child(const SharedFate& shared, int kept_from, int kept_to) {
  if (::fork() == 0) {
    ::alarm(30);
    for (int fd = 3; fd < 100; ++fd)
      if (fd < kept_from || fd >= kept_to) ::close(fd);
    while (!shared->over) ::usleep(2000);
    ::_exit(0);
  }
  shared->ended_at = count_now();
  ::raise(SIGKILL);
  ::_exit(1);
}

// promise: errors#when-a-process-has-ended
TEST(LostInGather, worker_whose_child_holds_its_socket_is_lost_within_a_second) {
  auto best = seconds(1000).count() * std::int64_t{1'000'000'000};
  for (int attempt = 0; attempt < 3; ++attempt) {
    const SharedFate shared;
    const ProcessOutcome outcome = run_processes(3, [&](int rank, FileDescriptor socket) {
      const int kept = ::fcntl(socket.get(), F_DUPFD, 50);
      const Job job(std::make_shared<JobState>(
          Identity{rank, 3}, host_system(), connect_to_broker(std::move(socket), rank, 3),
          JobOptions{.join_deadline = seconds(30), .deadline = seconds(20)}));
      gather(*job.state(), "first", {0, 1, 2}, {});
      if (rank == 1) end_under_a_child(shared, kept, kept + 1);
      ::close(kept);
      try {
        gather(*job.state(), "second", {0, 1, 2}, {});
        ADD_FAILURE() << "nobody is missed";
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), 1);
        EXPECT_STREQ(lost.what(), "rank 1 ended before coming to second");
      }
      const std::int64_t delay = count_now() - shared->ended_at;
      std::int64_t longest = shared->longest;
      while (longest < delay && !shared->longest.compare_exchange_weak(longest, delay)) {
      }
      // The next meeting needs no wait to find out.
      EXPECT_THROW(gather(*job.state(), "third", {0, 1, 2}, {}), PeerLost);
      // The others meet without it.
      EXPECT_EQ(gather(*job.state(), "fourth", {0, 2}, {}).size(), 2U);
    });
    for (const std::size_t rank : {0, 2})
      EXPECT_TRUE(outcome.ranks[rank].good()) << outcome.describe();
    ASSERT_FALSE(outcome.blames.empty());
    for (const Blame& blame : outcome.blames) EXPECT_EQ(blame.culprit, 1) << blame.text;
    best = std::min<std::int64_t>(best, shared->longest);
  }
  EXPECT_LT(best, 1'000'000'000) << "the best of three: the machine may be loaded";
}

TEST(LostInGather, parcel_of_a_worker_that_gave_it_before_it_ended_counts) {
  const SharedFate shared;
  const ProcessOutcome outcome = run_processes(2, [&](int rank, FileDescriptor socket) {
    const int kept = ::fcntl(socket.get(), F_DUPFD, 50);
    const Job job(std::make_shared<JobState>(
        Identity{rank, 2}, host_system(), connect_to_broker(std::move(socket), rank, 2),
        JobOptions{.join_deadline = seconds(30), .deadline = seconds(20)}));
    if (rank == 1) {
      std::thread giver([&] { gather(*job.state(), "last", {0, 1}, {"its last word", {}}); });
      poll_until_awaited(job, 1, 0);
      end_under_a_child(shared, kept, kept + 1);
    }
    ::close(kept);
    Arrivals::poll_until([&] { return job.alive().size() == 1; });
    EXPECT_EQ(gather(*job.state(), "last", {0, 1}, {})[1].bytes, "its last word");
    EXPECT_THROW(gather(*job.state(), "more", {0, 1}, {}), PeerLost);
  });
  EXPECT_TRUE(outcome.ranks[0].good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
