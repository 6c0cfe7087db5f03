// What workers have started and left behind: nothing of it outlives the run, however the run ends.

#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <thread>

#include "apps/shell_scripts.h"
#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Processes that have left the worker's process group, as `setsid` and `timeout` make them; one of
// them has also lost its parent, and one keeps the worker's output open.
constexpr const char* kLeaveGroup =
    "timeout 1000 sh -c 'echo child=$$; exec sleep 1000 > /dev/null 2>&1' & "
    "setsid sh -c 'echo child=$$; exec sleep 1000' & "
    "(setsid sh -c 'echo child=$$; exec sleep 1000 > /dev/null 2>&1' &); ";
constexpr std::size_t kLeavers = 3;

bool is_gone(pid_t pid) { return !std::filesystem::exists("/proc/" + std::to_string(pid)); }

class Leavers {
 public:
  explicit Leavers(RunningCommand& command, int workers = 1) {
    const auto all = kLeavers * static_cast<std::size_t>(workers);
    EXPECT_TRUE(command.wait_for_numbers("child", static_cast<int>(all)));
    for (const int pid : numbers_after(command.out, "child")) {
      watched_.emplace_back(pid);
      EXPECT_TRUE(watched_.back().exists());
    }
    EXPECT_EQ(watched_.size(), all);
  }
  void expect_end() const {
    for (const auto& process : watched_) EXPECT_TRUE(process.ends(kTestDeadline));
  }

 private:
  std::vector<WatchedProcess> watched_;
};

// promise: launcher#nothing-is-left-behind
TEST(RunLeftovers, WhatLeftItsWorkersGroupEndsWithARunThatEndedWellOrNot) {
  for (const int status : {0, 3}) {
    const TemporaryFolder folder;
    RunningCommand command(
        {"run", "-n", "1", "/bin/sh", "-c",
         kLeaveGroup + wait_for_file(folder.file("go")) + "exit " + std::to_string(status)});
    const Leavers leavers(command);
    create_file(folder.file("go"));
    EXPECT_EQ(command.finish(), status);
    leavers.expect_end();
  }
}

// promise: launcher#nothing-is-left-behind
TEST(RunLeftovers, WhatLeftItsWorkersGroupEndsWithAnInterruptedRun) {
  RunningCommand command(
      {"run", "-n", "2", "/bin/sh", "-c", std::string(kLeaveGroup) + "exec sleep 1000"});
  const Leavers leavers(command, 2);
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(), 128 + SIGTERM);
  leavers.expect_end();
}

// promise: launcher#nothing-is-left-behind, launcher#starting-again
TEST(RunLeftovers, WhatLeftItsWorkersGroupEndsBeforeTheNextAttempt) {
  const TemporaryFolder folder;
  RunningCommand command({"run", "-n", "1", "--restarts", "1", "/bin/sh", "-c",
                          "if [ $TUTTI_RESTART = 1 ]; then echo ready; " +
                              wait_for_file(folder.file("end")) + "exit 0; fi; " + kLeaveGroup +
                              wait_for_file(folder.file("go")) + "exit 3"});
  const Leavers leavers(command);
  create_file(folder.file("go"));
  ASSERT_TRUE(command.wait_for("ready"));
  for (const int pid : numbers_after(command.out, "child")) EXPECT_TRUE(is_gone(pid));
  create_file(folder.file("end"));
  EXPECT_EQ(command.finish(), 0);
  leavers.expect_end();
}

// promise: launcher#nothing-is-left-behind
TEST(RunLeftovers, NothingOutlivesAKilledLauncherThatHasNoCloseRange) {
  for (const bool whole_group : {false, true}) {
    RunningCommand command({"run", "-n", "2", "/bin/sh", "-c",
                            "trap '' TERM HUP; " + std::string(kLeaveGroup) +
                                "sleep 1000 & echo worker=$$ own=$!; wait"},
                           {.absent_calls = {SYS_close_range}});
    const Leavers leavers(command, 2);
    ASSERT_TRUE(command.wait_for_numbers("own", 2));
    std::vector<WatchedProcess> watched;
    for (const std::string name : {"worker", "own"})
      for (const int pid : numbers_after(command.out, name)) watched.emplace_back(pid);
    ASSERT_EQ(watched.size(), 4U);
    if (whole_group) {
      kill(-command.pid(), SIGKILL);
    } else {
      command.signal(SIGKILL);
    }
    EXPECT_EQ(command.finish(), 128 + SIGKILL);  // reads to the end of both streams
    for (const auto& process : watched) EXPECT_TRUE(process.ends(kTestDeadline));
    leavers.expect_end();
  }
}

// promise: errors#what-is-not-survived, launcher#nothing-is-left-behind
TEST(RunLeftovers, NothingOutlivesTheLauncherThatTheKeeperWatches) {
  RunningCommand command({"run", "-n", "2", "/bin/sh", "-c",
                          "echo launcher=$PPID; " + std::string(kLeaveGroup) + "exec sleep 1000"});
  const Leavers leavers(command, 2);
  const pid_t launcher = numbers_after(command.out, "launcher").at(0);
  ASSERT_NE(launcher, command.pid());
  kill(launcher, SIGKILL);
  EXPECT_EQ(command.finish(), 128 + SIGKILL);
  EXPECT_EQ(lines_of(command.err).back(),
            "tutti run: the launcher was killed by signal SIGKILL (9): all workers were ended");
  leavers.expect_end();
}

TEST(RunLeftovers, ProcessesOfTheSameNumberOutsideOfTheNamespaceAreNotTheRuns) {
  // The launcher gets this test's number, and the /proc of the outer processes shows its child.
  const CommandSetup outer_proc{
      .before = {"unshare", "--fork", "--pid", "/bin/sh", "-c",
                 "echo " + std::to_string(getpid() - 1) +
                     " 2> /dev/null > /proc/sys/kernel/ns_last_pid; exec \"$@\"",
                 "sh"}};
  if (run_command({"--version"}, outer_proc).status != 0)
    GTEST_SKIP() << "no process namespaces here: unshare --pid is not permitted";
  const auto run = run_script({"-n", "1"}, "exit 0", outer_proc);
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.err, Not(HasSubstr("has not ended")));
}

// promise: launcher#nothing-is-left-behind
TEST(RunLeftovers, WorkersEndWhenKeeperAndLauncherAreKilledAtOnce) {
  RunningCommand command({"run", "-n", "2", "/bin/sh", "-c",
                          "trap '' TERM HUP; echo launcher=$PPID worker=$$; while :; do sleep 0.1; "
                          "done"});
  ASSERT_TRUE(command.wait_for_numbers("worker", 2));
  std::vector<WatchedProcess> workers;
  for (const int pid : numbers_after(command.out, "worker")) workers.emplace_back(pid);
  command.signal(SIGSTOP);
  kill(numbers_after(command.out, "launcher").at(0), SIGKILL);
  command.signal(SIGKILL);
  EXPECT_EQ(command.finish(), 128 + SIGKILL);
  for (const auto& worker : workers) EXPECT_TRUE(worker.ends(kTestDeadline));
}

// promise: launcher#nothing-is-left-behind
TEST(RunLeftovers, ChildrenThatTheShellHadBeforeAreNotTheRuns) {
  // `daemon & exec tutti run …`
  const TemporaryFolder folder;
  for (const bool killed : {false, true}) {
    RunningCommand command(
        {"run", "-n", "1", "/bin/sh", "-c",
         "echo launcher=$PPID; " + wait_for_file(folder.file("go"))},
        {.before = {"/bin/sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo other=$!; exec \"$@\"",
                    "sh"}});
    ASSERT_TRUE(command.wait_for_numbers("launcher"));
    const int other = numbers_after(command.out, "other").at(0);
    if (killed) {
      kill(numbers_after(command.out, "launcher").at(0), SIGKILL);
    } else {
      create_file(folder.file("go"));
    }
    EXPECT_EQ(command.finish(), killed ? 128 + SIGKILL : 0);
    EXPECT_FALSE(is_gone(other));
    EXPECT_FALSE(WatchedProcess(other).ends(std::chrono::milliseconds(0)));
    kill(other, SIGKILL);
    std::filesystem::remove(folder.file("go"));
  }
}

// promise: launcher#nothing-is-left-behind
TEST(RunLeftovers, OrphansOfWhatTheShellHadBeforeEndWithAKilledLauncher) {
  const TemporaryFolder folder;
  const std::string other = "sleep 1000 > /dev/null 2>&1 & echo orphan=$!; : > " +
                            folder.file("ready") + "; " + wait_for_file(folder.file("run"));
  RunningCommand command(
      {"run", "-n", "1", "/bin/sh", "-c", "echo launcher=$PPID; exec sleep 1000"},
      {.before = {"/bin/sh", "-c",
                  "{ " + other + "} & " + wait_for_file(folder.file("ready")) + "exec \"$@\"",
                  "sh"}});
  ASSERT_TRUE(command.wait_for_numbers("launcher"));
  const int orphan = numbers_after(command.out, "orphan").at(0);
  const WatchedProcess watched(orphan);
  create_file(folder.file("run"));
  EXPECT_TRUE(comes_true([&] {
    const auto children = children_of(command.pid());
    return std::find(children.begin(), children.end(), orphan) != children.end();
  }));
  kill(numbers_after(command.out, "launcher").at(0), SIGKILL);
  EXPECT_EQ(command.finish(), 128 + SIGKILL);
  EXPECT_TRUE(watched.ends(kTestDeadline));
}

// The worker leaves twenty orphans that end at once, then waits.
constexpr const char* kOrphans =
    "i=0; while [ $i -lt 20 ]; do (sh -c 'echo orphan=$$' &); i=$((i + 1)); done; ";

// promise: launcher#nothing-is-left-behind
TEST(RunLeftovers, OrphansDoNotPileUpWhileTheRunGoesOn) {
  // Rank 0 has ended, and is kept as a zombie: it must not hide the others.
  const TemporaryFolder folder;
  RunningCommand command({"run", "-n", "2", "/bin/sh", "-c",
                          "[ $TUTTI_RANK = 0 ] && exit 0; echo launcher=$PPID; " +
                              std::string(kOrphans) + wait_for_file(folder.file("go"))});
  ASSERT_TRUE(command.wait_for_numbers("orphan", 20));
  const pid_t launcher = numbers_after(command.out, "launcher").at(0);
  EXPECT_TRUE(comes_true([&] { return children_of(launcher).size() == 2; }));
  EXPECT_EQ(children_of(command.pid()), std::vector<pid_t>{launcher});
  create_file(folder.file("go"));
  EXPECT_EQ(command.finish(), 0);
}

// promise: launcher#nothing-is-left-behind
TEST(RunLeftovers, OrphansDoNotPileUpWhereTheCommandIsTheFirstProcess) {
  const CommandSetup container{.before = {"unshare", "--fork", "--pid", "--mount-proc"}};
  if (run_command({"--version"}, container).status != 0)
    GTEST_SKIP() << "no process namespaces here: unshare --pid is not permitted";
  // An orphan of the namespace itself, not of a worker, is the first process' own.
  const auto run = run_script(
      {"-n", "1"},
      std::string(kOrphans) +
          "n=0; while grep -qs State:.Z /proc/[0-9]*/status; do n=$((n + 1)); "
          "[ $n -lt 600 ] || { echo zombies; exit 5; }; sleep 0.1; done; echo first=$(cat "
          "/proc/1/comm)",
      container);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("first=tutti"));
  EXPECT_THAT(run.out, Not(HasSubstr("zombies")));
}

// findings-3: C4
TEST(RunLeftovers, WithoutProcWhatLeftItsGroupIsAtLeastTold) {
  const CommandSetup without{.before = {"unshare", "--mount", "/bin/sh", "-c",
                                        "mount -t tmpfs none /proc && exec \"$@\"", "sh"}};
  if (run_command({"--version"}, without).status != 0)
    GTEST_SKIP() << "no mount namespaces here: unshare --mount is not permitted";
  const auto run =
      run_script({"-n", "1"}, "setsid sleep 4 > /dev/null 2>&1 & sleep 0.5; exit 4", without);
  EXPECT_EQ(run.status, 4);
  EXPECT_THAT(run.err,
              HasSubstr("tutti run: what workers have started still runs; it is not ended, "
                        "because /proc, which would show it, is missing here\n"));
  EXPECT_EQ(run_script({"-n", "1"}, "sleep 100 > /dev/null 2>&1 & exit 0", without)
                .err.find("still runs"),
            std::string::npos)
      << "what is in the group of its worker is ended";
}

}  // namespace
}  // namespace tutti
