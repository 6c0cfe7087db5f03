#include "apps/tutti/run/process_tree.h"

#include <gmock/gmock.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include "support/running_command.h"

namespace tutti::command {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::vector<pid_t> numbers_of(const std::vector<ProcessEntry>& processes) {
  std::vector<pid_t> numbers;
  for (const ProcessEntry& process : processes) numbers.push_back(process.pid);
  return numbers;
}

TEST(ProcessTree, HasAllDescendantsWhichAreThereUntilTheyHaveBeenWaitedFor) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const pid_t own = getpid();
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != own) _exit(1);
    }
    for (;;) pause();
  }
  EXPECT_TRUE(comes_true([&] { return descendants_of(child).size() == 1; }));
  const auto below = descendants_of(getpid());
  EXPECT_THAT(numbers_of(below), IsSupersetOf({child, descendants_of(child).at(0).pid}));
  EXPECT_EQ(still_there(below), numbers_of(below));
  auto reused = below;
  for (ProcessEntry& process : reused) ++process.started;
  EXPECT_THAT(still_there(reused), IsEmpty());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(still_there(below), Not(Contains(child)));
}

}  // namespace
}  // namespace tutti::command
