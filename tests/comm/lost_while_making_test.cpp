// A member that ends while a group is made or its memory allocated, and whose socket a child of it
// still holds.

#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>

#include "base/system.h"
#include "job/job_state.h"
#include "job/rendezvous/socket_rendezvous.h"
#include "support/process_ranks.h"
#include "support/shared_between_processes.h"
#include "support/wrapped_system.h"
#include "tutti/error.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

using std::chrono::seconds;

struct Shared {
  std::atomic<std::int64_t> ended_at{0};
  std::atomic<bool> over{false};
};

std::int64_t count_now() { return Clock::now().time_since_epoch().count(); }

/// The host, where this process ends under a child of its own once it makes shared memory.
class EndsInCreate final : public WrappedSystem {
 public:
  EndsInCreate(Shared* shared, int socket, bool ends)
      : shared_(shared), socket_(socket), ends_(ends) {}
  FileDescriptor create_memory(std::string_view name, std::size_t bytes) override {
    if (!ends_ || name != "fatal") return WrappedSystem::create_memory(name, bytes);
    end();
  }
  [[noreturn]] void end() {
    if (::fork() == 0) {
      ::alarm(30);
      for (int fd = 3; fd < 100; ++fd)  // the test's own pipe among them
        if (fd != socket_) ::close(fd);
      while (!shared_->over) ::usleep(2000);
      ::_exit(0);
    }
    shared_->ended_at = count_now();
    ::raise(SIGKILL);
    ::_exit(1);
  }

 private:
  Shared* shared_;
  int socket_;
  bool ends_;
};

/// Rank 1 of three ends in what `ends` does; `call` gets the others there. The best time to notice.
void expect_lost(const std::function<void(const Job&, const Group&)>& call,
                 const std::function<void(const Group&, EndsInCreate&)>& ends,
                 const std::string& missed) {
  auto best = std::int64_t{1} << 62;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const SharedBetweenProcesses<Shared> shared;
    const ProcessOutcome outcome = run_processes(3, [&](int rank, FileDescriptor socket) {
      auto system = std::make_shared<EndsInCreate>(shared.get(), socket.get(), rank == 1);
      const Job job(std::make_shared<JobState>(
          Identity{rank, 3}, system, connect_to_broker(std::move(socket), rank, 3),
          JobOptions{.join_deadline = seconds(30), .deadline = seconds(20)}));
      const Group world(job);
      if (rank == 1) ends(world, *system);
      try {
        call(job, world);
        ADD_FAILURE() << "nobody is missed";
      } catch (const PeerLost& lost) {
        EXPECT_EQ(lost.rank(), 1) << lost.what();
        EXPECT_THAT(lost.what(), ::testing::HasSubstr(missed + " of ranks 0 1 2"));
      }
      const auto delay = count_now() - shared->ended_at;
      EXPECT_LT(delay, seconds(10) / std::chrono::nanoseconds(1));
      if (rank == 0) throw std::runtime_error(std::to_string(delay));
    });
    shared->over = true;
    EXPECT_EQ(outcome.ranks[1].signal, SIGKILL);
    EXPECT_TRUE(outcome.ranks[2].good()) << outcome.describe();
    ASSERT_THAT(outcome.ranks[0].text, ::testing::MatchesRegex("[0-9]+")) << outcome.describe();
    best = std::min<std::int64_t>(best, std::stoll(outcome.ranks[0].text));
    EXPECT_GE(outcome.blames.size(), 2U);
    for (const Blame& blame : outcome.blames) EXPECT_EQ(blame.culprit, 1) << blame.text;
  }
  EXPECT_LT(best, 1'000'000'000) << "the best of three: the machine may be loaded";
}

TEST(LostWhileMaking, group_tells_within_a_second_although_a_child_holds_the_socket) {
  expect_lost([](const Job& job, const Group&) { const Group second(job, "second"); },
              [](const Group&, EndsInCreate& system) { system.end(); },
              "the making of group \"second\"");
}

TEST(LostWhileMaking, split_tells_within_a_second_although_a_child_holds_the_socket) {
  expect_lost([](const Job&, const Group& world) { world.split(0, "second"); },
              [](const Group& world, EndsInCreate& system) {
                const int mine = 0;
                int colours[3];
                world.all_gather({&mine, 1, DType::int32}, {colours, 3, DType::int32},
                                 {.label = "split \"second\""});
                system.end();
              },
              "the making of group \"second\"");
}

TEST(LostWhileMaking, allocate_tells_within_a_second_and_blames_the_one_that_ended) {
  expect_lost([](const Job&, const Group& world) { world.allocate(4096, "fatal"); },
              [](const Group& world, EndsInCreate&) { world.allocate(4096, "fatal"); },
              "memory 1 of group \"world\"");
}

}  // namespace
}  // namespace tutti::test
