// How runs end: failures, signals, and nothing left behind.

#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <chrono>
#include <csignal>

#include "apps/shell_scripts.h"
#include "support/running_command.h"

namespace tutti {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;

// The promise of the launcher, from the first failure on.
constexpr seconds kAllEnded{5};

constexpr const char* kIgnoreTerm = "trap '' TERM; echo pid=$$; while :; do sleep 0.1; done";

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string only_rank(int rank, const std::string& script, const std::string& others) {
  return "if [ $TUTTI_RANK = " + std::to_string(rank) + " ]; then " + script + "; else " + others +
         "; fi";
}

// promise: launcher#when-a-worker-fails
TEST(RunEnd, StatusIsZeroWhenAllSucceed) { EXPECT_EQ(run_script({"-n", "3"}, "exit 0").status, 0); }

// promise: launcher#what-a-worker-gets
TEST(RunEnd, ANoteSaysThatNobodyJoined) {
  const auto strangers = run_script({"-n", "2"}, "exit 0");
  EXPECT_EQ(lines_of(strangers.err).back(),
            "tutti run: note: no worker called tutti::Job::join(): these were 2 programs that know "
            "nothing of each other");
  EXPECT_THAT(run_script({"-n", "1"}, "exit 0").err, Not(HasSubstr("note:")));
  EXPECT_THAT(run_script({"-n", "2"}, "exit 3").err, Not(HasSubstr("note:")));
  const auto joined = run_command(
      {"run", "-n", "2", "env", "TUTTI_RESTART=1", TUTTI_RESTARTED_WORKER});  // ends well at once
  EXPECT_EQ(joined.status, 0) << joined.err;
  EXPECT_THAT(joined.err, Not(HasSubstr("note:")));
}

// promise: errors#when-a-worker-dies, launcher#when-a-worker-fails
TEST(RunEnd, StatusIsThatOfTheWorkerThatFailedFirst) {
  const auto run = run_script({"-n", "3"}, only_rank(2, "exit 9", "sleep 100"));
  EXPECT_EQ(run.status, 9);
}

// promise: launcher#when-a-worker-fails
TEST(RunEnd, ASignalIsNamedAndCounts128More) {
  const auto run = run_script({"-n", "2"}, only_rank(1, "kill -SEGV $$", "sleep 100"));
  EXPECT_EQ(run.status, 128 + SIGSEGV);
  EXPECT_EQ(lines_of(run.err).back(),
            "tutti run: rank 1 of 2 failed first: killed by signal SIGSEGV (11)");
}

// promise: errors#when-a-worker-dies, launcher#when-a-worker-fails
TEST(RunEnd, TheFirstFailureIsReadLast) {
  const TemporaryFolder folder;
  const auto run = run_script(
      {"-n", "3"}, only_rank(1,
                             wait_for_file(folder.file("0")) + wait_for_file(folder.file("2")) +
                                 "for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3",
                             "trap 'echo rank $TUTTI_RANK was asked; exit 0' TERM; : > " +
                                 folder.file("$TUTTI_RANK") + "; while :; do sleep 0.05; done"));
  EXPECT_EQ(run.status, 3);
  for (const char line : {'1', '7'}) EXPECT_EQ(count(run.err, std::string("line ") + line), 1);
  EXPECT_EQ(lines_of(run.err).back(), "tutti run: rank 1 of 3 failed first: exit status 3");
  EXPECT_THAT(run.out, HasSubstr("[0] rank 0 was asked"));
  EXPECT_THAT(run.out, HasSubstr("[2] rank 2 was asked"));
}

// promise: launcher#when-a-worker-fails
TEST(RunEnd, AnEchoOfAnotherFailureIsNotCalledTheFirst) {
  const auto run = run_command({"run", "-n", "2", TUTTI_BLAMING_WORKER});
  EXPECT_EQ(run.status, 7) << run.err;
  EXPECT_THAT(run.err, HasSubstr("tutti run: rank 0 failed in consequence"));
  EXPECT_EQ(lines_of(run.err).back(), "tutti run: rank 1 of 2 failed first: exit status 7");
}

// promise: launcher#when-a-worker-fails
TEST(RunEnd, AWorkerThatEndsWellWhileOthersWaitIsNamedInTheLastLine) {
  const auto run =
      run_script({"-n", "3"}, only_rank(2, "exit 0", "exec " TUTTI_WAITING_WORKER " /dev/null 60"));
  EXPECT_EQ(run.status, 128 + SIGABRT) << run.err;
  EXPECT_THAT(run.err, HasSubstr("rank 2 ended before coming to Job::join()"));
  EXPECT_THAT(lines_of(run.err).back(),
              ::testing::MatchesRegex("tutti run: rank [01] of 3 failed first: killed by signal "
                                      "SIGABRT \\(6\\); it blames rank 2, which ended by itself "
                                      "with exit status 0"));
}

// promise: launcher#when-a-worker-fails
TEST(RunEnd, AMessageIsPrintedOnce) {
  // By the worker itself, or by the launcher, which was told of it.
  for (const std::string how : {"says", "silent"}) {
    const auto run = run_command({"run", "-n", "2", TUTTI_BLAMING_WORKER, how});
    EXPECT_EQ(run.status, 3) << run.err;
    EXPECT_EQ(count(run.out + run.err, "rank 1 sent a wrong shape"), 1) << how << run.err;
    EXPECT_THAT(run.err, Not(HasSubstr("a second line")));
    EXPECT_EQ(
        lines_of(run.err).back(),
        "tutti run: rank 0 of 2 failed first: exit status 3; it blames rank 1, which ended by "
        "itself with exit status 0");
    EXPECT_EQ(run.err.find("tutti run: rank 0: rank 1 sent") != std::string::npos, how == "silent");
  }
}

// promise: launcher#output
TEST(RunEnd, StackFramesGoToTheLogAlone) {
  const std::string message =
      "  what():  Expected all tensors to be alike\n"
      "Exception raised from check at ../aten/src/x.cpp:12 (most recent call first):\n"
      "frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f0 in /lib/libc10.so)\n"
      "frame #12: <unknown function> + 0x29d90 (0x7f1 in /lib/libc.so.6)\n";
  const std::string others = "frame #1: 20 ms\nException raised from the dead\n";
  const std::string script = "printf '" + message + others + "' >&2; exit 3";
  const TemporaryFolder folder;
  const auto logged = run_script({"-n", "1", "--log", folder.file("logs")}, script);
  const std::string shown =
      "[0]   what():  Expected all tensors to be alike\n[0] frame #1: 20 ms\n"
      "[0] Exception raised from the dead\n";
  EXPECT_THAT(logged.err, HasSubstr(shown + "tutti run: rank 0: stack frames: in " +
                                    folder.file("logs/rank-0.log") + "\n"));
  EXPECT_EQ(read_file(folder.file("logs/rank-0.log")), message + others);
  EXPECT_THAT(
      run_script({"-n", "1"}, script).err,
      HasSubstr(shown + "tutti run: rank 0: stack frames are left out: --log DIR keeps them\n"));
}

// promise: launcher#when-a-worker-fails
TEST(RunEnd, TheRestMayEndByThemselvesFirst) {
  // Of the second that rank 1 has, a loaded machine may take most: one of some runs must do.
  bool was_asked = true;
  for (int attempt = 0; attempt < 5 && was_asked; ++attempt) {
    const TemporaryFolder folder;
    const std::string pid = folder.file("pid");
    const std::string ready = folder.file("ready");
    const std::string outlive =
        "trap 'echo was asked' TERM; " + wait_for_file(pid) + "read first < " + pid + "; : > " +
        ready + "; until grep -q State:.Z /proc/$first/status; do sleep 0.02; done; " +
        "sleep 0.1; echo own end; exit 1";
    // Both may be found ended at once: then the lower rank counts as the first.
    const auto run =
        run_script({"-n", "2"}, only_rank(0,
                                          "echo $$ > " + pid + ".part; mv " + pid + ".part " + pid +
                                              "; " + wait_for_file(ready) + "exit 3",
                                          outlive));
    EXPECT_EQ(run.status, 3);
    was_asked = run.out.find("was asked") != std::string::npos;
    if (was_asked) continue;
    EXPECT_THAT(run.out, HasSubstr("own end"));
    EXPECT_THAT(run.err, HasSubstr("rank 1 failed too"));
  }
  EXPECT_FALSE(was_asked);
}

// promise: errors#when-a-worker-dies, launcher#when-a-worker-fails
TEST(RunEnd, WorkersThatIgnoreTerminationAreEndedWithinFiveSeconds) {
  const TemporaryFolder folder;
  RunningCommand command({"run", "-n", "3", "/bin/sh", "-c",
                          only_rank(2, wait_for_file(folder.file("go")) + "exit 3", kIgnoreTerm)});
  ASSERT_TRUE(command.wait_for_numbers("pid", 2));
  const auto pids = numbers_after(command.out, "pid");
  const WatchedProcess first(pids.at(0));
  const WatchedProcess second(pids.at(1));
  const auto start = steady_clock::now();
  create_file(folder.file("go"));
  EXPECT_TRUE(first.ends(kTestDeadline));
  EXPECT_TRUE(second.ends(kTestDeadline));
  EXPECT_LT(steady_clock::now() - start, kAllEnded);
  EXPECT_EQ(command.finish(), 3);
  EXPECT_THAT(command.err, HasSubstr("ranks 0 1 did not end and had to be stopped"));
}

TEST(RunEnd, ChildrenOfAFailedWorkerEndToo) {
  const TemporaryFolder folder;
  RunningCommand command(
      {"run", "-n", "1", "/bin/sh", "-c",
       "sleep 1000 & echo child=$!; " + wait_for_file(folder.file("go")) + "exit 6"});
  ASSERT_TRUE(command.wait_for_numbers("child"));
  const WatchedProcess child(numbers_after(command.out, "child").at(0));
  ASSERT_TRUE(child.exists());
  create_file(folder.file("go"));
  EXPECT_EQ(command.finish(), 6);
  EXPECT_TRUE(child.ends(kTestDeadline));
}

// promise: launcher#nothing-is-left-behind, launcher#when-a-worker-fails
TEST(RunEnd, SignalsAreForwardedAndEndAll) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    RunningCommand command(
        {"run", "-n", "2", "/bin/sh", "-c",
         "trap 'echo got signal; exit 0' INT TERM HUP; echo ready; while :; do sleep 0.05; done"});
    ASSERT_TRUE(command.wait_for("ready", 2));
    command.signal(signal);
    EXPECT_EQ(command.finish(), 128 + signal);
    EXPECT_THAT(command.out, HasSubstr("[0] got signal"));
    EXPECT_THAT(command.out, HasSubstr("[1] got signal"));
    EXPECT_THAT(command.err, Not(HasSubstr("failed first")));
  }
}

TEST(RunEnd, InterruptEscalates) {
  RunningCommand command(
      {"run", "-n", "2", "/bin/sh", "-c", std::string("trap '' INT; ") + kIgnoreTerm});
  ASSERT_TRUE(command.wait_for_numbers("pid", 2));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish(), 130);
}

// promise: launcher#when-a-worker-fails
TEST(RunEnd, ASecondInterruptKillsAtOnce) {
  // SIGTERM comes a second after the first: what is sent from then on is another request.
  RunningCommand command({"run", "-n", "2", "/bin/sh", "-c",
                          "trap 'echo again' INT; trap 'echo asked' TERM; echo ready; "
                          "while :; do sleep 0.05; done"});
  ASSERT_TRUE(command.wait_for("ready", 2));
  const auto start = steady_clock::now();
  command.signal(SIGINT);
  ASSERT_TRUE(command.wait_for("asked", 2));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish(), 130);
  EXPECT_LT(steady_clock::now() - start, seconds(3));  // when SIGKILL would be due
  EXPECT_THAT(command.err, HasSubstr("once more kills them at once"));
}

TEST(RunEnd, InterruptsWhileNobodyReadsEndTheRun) {
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c", "echo pid=$$ >&2; exec yes"});
  ASSERT_TRUE(command.wait_for_numbers("pid"));
  const WatchedProcess worker(numbers_after(command.err, "pid").at(0));
  command.signal(SIGINT);
  EXPECT_TRUE(worker.ends(kTestDeadline));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish(/*read_out=*/false), 130);
}

// promise: errors#what-is-not-survived
TEST(RunEnd, NothingOutlivesAKilledLauncher) {
  RunningCommand command({"run", "-n", "3", "/bin/sh", "-c",
                          "trap '' TERM HUP; sleep 1000 & echo pid=$$ child=$!; wait"});
  ASSERT_TRUE(command.wait_for_numbers("child", 3));
  std::vector<WatchedProcess> watched;
  for (const std::string name : {"pid", "child"})
    for (const int pid : numbers_after(command.out, name)) watched.emplace_back(pid);
  ASSERT_EQ(watched.size(), 6U);
  for (const auto& process : watched) ASSERT_TRUE(process.exists());
  command.signal(SIGKILL);
  EXPECT_EQ(command.finish(), 128 + SIGKILL);
  for (const auto& process : watched) EXPECT_TRUE(process.ends(kTestDeadline));
}

// It was "cannot run "/bin/sh": Operation not permitted".
// findings-3: C7
TEST(RunEnd, ASandboxThatForbidsWhatTheLauncherNeedsIsNotCalledTheProgramsFault) {
  const auto run = run_script({"-n", "1"}, "true", {.absent_calls = {SYS_prctl}});
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(lines_of(run.err).back(),
            "tutti run: cannot start a worker: prctl(PR_SET_PDEATHSIG), which ends it with the "
            "launcher: Function not implemented; does a sandbox (seccomp) forbid it?");
}

std::string uncaught(const std::string& type, const std::string& text) {
  return "ulimit -c 0; printf \"terminate called after throwing an instance of '" + type +
         "'\\n  what():  " + text + "\\n\" >&2; kill -ABRT $$; ";
}

// findings-3: D5
TEST(RunEnd, AnUncaughtErrorThatAllRanksHaveIsPrintedOnceInPlainWords) {
  const TemporaryFolder folder;
  const auto run = run_script({"-n", "4", "--log", folder.file("logs")},
                              uncaught("tutti::Mismatch", "members of group disagree"));
  EXPECT_EQ(run.status, 134);
  EXPECT_EQ(count(run.err, "members of group disagree"), 1) << run.err;
  EXPECT_THAT(run.err,
              HasSubstr("[0-3] error (tutti::Mismatch, not caught): members of group disagree\n"));
  EXPECT_THAT(run.err, Not(HasSubstr("terminate called")));
  EXPECT_EQ(read_file(folder.file("logs/rank-3.log")),
            "terminate called after throwing an instance of 'tutti::Mismatch'\n"
            "  what():  members of group disagree\n");
}

// findings-3: D5
TEST(RunEnd, UncaughtErrorsOfInnocentRanksStandBesideTheOneOfTheCause) {
  const auto run = run_script(
      {"-n", "4"}, "if [ $TUTTI_RANK = 2 ]; then " + uncaught("std::runtime_error", "out of luck") +
                       "fi; " + uncaught("tutti::PeerLost", "rank 2 ended"));
  EXPECT_THAT(run.err, HasSubstr("[0-1,3] error (tutti::PeerLost, not caught): rank 2 ended\n"));
  EXPECT_THAT(run.err, HasSubstr("[2] terminate called after throwing an instance of "
                                 "'std::runtime_error'\n"));
  EXPECT_EQ(count(run.err, "terminate called"), 1) << run.err;
}

// findings-3: D5
TEST(RunEnd, LastWordsOfAWorkerThatDoesNotEndAreShownAllTheSame) {
  RunningCommand command(
      {"run", "-n", "1", "/bin/sh", "-c",
       "echo \"terminate called after throwing an instance of 'tutti::Timeout'\" >&2; sleep 100"});
  EXPECT_TRUE(command.wait_for("[0] terminate called after throwing"));
}

}  // namespace
}  // namespace tutti
