#include "apps/tutti/run/process_tree.h"

#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include "support/running_command.h"

namespace tutti::command {
namespace {

using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

/// A child that has a child, as long as this process lives.
pid_t start_two() {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const pid_t own = getpid();
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != own) _exit(1);
  }
  for (;;) pause();
}

TEST(ProcessTree, HasChildrenUntilTheyHaveBeenWaitedFor) {
  const pid_t child = start_two();
  ASSERT_GT(child, 0);
  EXPECT_TRUE(comes_true([&] { return children_of(child).size() == 1; }));
  EXPECT_THAT(children_of(getpid()), ElementsAre(child));
  kill(child, SIGKILL);
  EXPECT_THAT(children_of(getpid()), ElementsAre(child));
  waitpid(child, nullptr, 0);
  EXPECT_THAT(children_of(getpid()), ElementsAre());
}

// promise: launcher#stop-and-resume
TEST(ProcessTree, StopsAllThatRunBelow) {
  // A child of a child may be stopped before it has asked to end with its parent.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t child = start_two();
  const pid_t stopped = start_two();
  EXPECT_TRUE(comes_true(
      [&] { return children_of(child).size() == 1 && children_of(stopped).size() == 1; }));
  kill(stopped, SIGSTOP);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(stopped), &info, WSTOPPED);
  const auto below = stop_descendants();
  EXPECT_EQ(below.size(), 3U);  // but for the one that was stopped
  EXPECT_THAT(below, IsSupersetOf({child, children_of(child).at(0), children_of(stopped).at(0)}));
  // A signal takes its time.
  EXPECT_TRUE(comes_true([] { return stop_descendants().empty(); }));
  const std::vector<pid_t> spared = {stopped};
  EXPECT_THAT(end_children(spared, std::chrono::seconds(10)), ElementsAre());
  EXPECT_THAT(children_of(getpid()), ElementsAre(stopped));
  EXPECT_THAT(end_children({}, std::chrono::seconds(10)), ElementsAre());
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace tutti::command
