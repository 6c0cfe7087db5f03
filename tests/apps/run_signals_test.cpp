// Signals as shells, terminals and service managers send them: to which process of the run they
// come, and what the command's own end tells whoever started it.

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "support/running_command.h"

namespace tutti {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;

char state_of(pid_t pid) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto at = status.find("State:\t");
  return at == std::string::npos ? '-' : status[at + 7];
}
bool is_stopped(pid_t pid) { return state_of(pid) == 'T'; }

// A run of one worker whose processes are known.
struct OneWorker {
  explicit OneWorker(const std::string& script, const CommandSetup& setup = {})
      : command({"run", "-n", "1", "/bin/sh", "-c", "echo pid=$$ launcher=$PPID; " + script},
                setup) {
    EXPECT_TRUE(command.wait_for_numbers("pid"));
    worker = numbers_after(command.out, "pid").at(0);
    launcher = numbers_after(command.out, "launcher").at(0);
  }
  RunningCommand command;
  pid_t worker = 0;
  pid_t launcher = 0;
};

// promise: launcher#when-a-worker-fails
TEST(RunSignals, OneRequestThatReachesEachProcessLeavesWorkersTheirTime) {
  // `systemctl stop`: the launcher gets it from the sender and from the keeper.
  const TemporaryFolder folder;
  for (int times = 0; times < 5; ++times) {
    const std::string saved = folder.file(std::to_string(times));
    OneWorker run("trap 'sleep 0.8; : > " + saved +
                  "; exit 0' TERM; echo ready; while :; do sleep 0.05; done");
    ASSERT_TRUE(run.command.wait_for("ready"));
    for (const pid_t pid : {run.command.pid(), run.launcher, run.worker}) kill(pid, SIGTERM);
    EXPECT_EQ(run.command.finish(), 128 + SIGTERM);
    EXPECT_TRUE(std::filesystem::exists(saved));
  }
}

// promise: launcher#stop-and-resume
TEST(RunSignals, AKeeperKilledRightAfterARequestIsNotTakenForTheSame) {
  OneWorker run("trap '' TERM; echo ready; while :; do sleep 0.05; done");
  ASSERT_TRUE(run.command.wait_for("ready"));
  const WatchedProcess worker(run.worker);
  const auto start = steady_clock::now();
  run.command.signal(SIGTERM);
  run.command.signal(SIGKILL);
  EXPECT_TRUE(worker.ends(kTestDeadline));
  EXPECT_LT(steady_clock::now() - start, seconds(3));  // when SIGKILL would be due
}

// promise: launcher#stop-and-resume
TEST(RunSignals, AKilledKeeperLeavesNothingOfAStoppedRun) {
  // `docker run -it image bash`: the shell is the first process, adopts the launcher, and both are
  // of one session, so that the system sends neither SIGHUP nor SIGCONT.
  const CommandSetup container{.before = {"unshare", "--fork", "--pid", "--mount-proc"}};
  if (run_command({"--version"}, container).status != 0)
    GTEST_SKIP() << "no process namespaces here: unshare --pid is not permitted";
  const TemporaryFolder folder;
  const std::string pids = folder.file("pids");
  const std::string shell =
      "in_state() { grep -qs \"State:.[$1]\" /proc/$2/status; }; "
      "\"$@\" & keeper=$!; until [ -e " +
      pids +
      " ]; do sleep 0.02; done; "
      "read worker launcher < " +
      pids +
      "; kill -TSTP $launcher; "
      "until in_state T $launcher; do sleep 0.02; done; kill -KILL $keeper; "
      "n=0; while in_state RSDT $launcher || in_state RSDT $worker; do n=$((n + 1)); "
      "[ $n -lt 250 ] || exit 5; sleep 0.02; done; exit 4";
  CommandSetup setup = container;
  setup.before.insert(setup.before.end(), {"/bin/sh", "-c", shell, "sh"});
  const auto run = run_script(
      {"-n", "1"},
      "echo $$ $PPID > " + pids + ".part; mv " + pids + ".part " + pids + "; exec sleep 1000",
      setup);
  EXPECT_EQ(run.status, 4) << run.err;
}

// promise: launcher#stop-and-resume
TEST(RunSignals, ALauncherThatSomebodyElseStopsDoesNotStopTheKeeper) {
  OneWorker run("exec sleep 1000");
  for (int times = 0; times < 3; ++times) {
    kill(run.launcher, SIGSTOP);
    EXPECT_TRUE(comes_true([&] { return is_stopped(run.launcher); }));
    kill(run.launcher, SIGCONT);
    EXPECT_TRUE(comes_true([&] { return !is_stopped(run.launcher); }));
  }
  run.command.signal(SIGTERM);
  EXPECT_EQ(run.command.finish(), 128 + SIGTERM);
}

// promise: launcher#stop-and-resume
TEST(RunSignals, AStopThatIsTakenBackAtOnceLeavesNobodyStopped) {
  for (int times = 0; times < 30; ++times) {
    OneWorker run("exec sleep 1000");
    run.command.signal(SIGTSTP);
    usleep(static_cast<useconds_t>(times) * 300);  // whatever the launcher does meanwhile
    run.command.signal(SIGCONT);
    run.command.signal(SIGTERM);
    ASSERT_EQ(run.command.finish(), 128 + SIGTERM);
  }
}

// promise: launcher#when-a-worker-fails
TEST(RunSignals, AnInterruptThatIsIgnoredFromTheStartStaysIgnored) {
  // `tutti run … &` in a script: Ctrl-C is for the script.
  OneWorker run("echo ready; exec sleep 1000",
                {.before = {"/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"}});
  ASSERT_TRUE(run.command.wait_for("ready"));
  run.command.signal(SIGINT);
  run.command.signal(SIGTERM);
  EXPECT_EQ(run.command.finish(), 128 + SIGTERM);
  EXPECT_THAT(run.command.err, Not(HasSubstr("SIGINT")));
}

// promise: launcher#when-a-worker-fails
TEST(RunSignals, AnInterruptedRunEndsByThatSignal) {
  // A shell asks how: only then does Ctrl-C end a loop of the script, too.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    OneWorker run("trap 'exit 0' INT TERM HUP; echo ready; while :; do sleep 0.05; done");
    ASSERT_TRUE(run.command.wait_for("ready"));
    run.command.signal(signal);
    siginfo_t info{};
    EXPECT_TRUE(WatchedProcess(run.command.pid()).ends(kTestDeadline));
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(run.command.pid()), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(info.si_code, CLD_KILLED);
    EXPECT_EQ(info.si_status, signal);
    EXPECT_EQ(run.command.finish(), 128 + signal);
  }
}

// promise: launcher#when-a-worker-fails
TEST(RunSignals, AWorkerThatASignalEndedIsNoInterrupt) {
  const auto run =
      run_command({"run", "-n", "1", "/bin/sh", "-c", "kill -TERM $$"},
                  {.before = {"/bin/sh", "-c", "\"$@\"; echo own shell goes on with $?", "sh"}});
  EXPECT_THAT(run.out, HasSubstr("own shell goes on with 143"));
  RunningCommand command({"run", "-n", "1", "/bin/sh", "-c", "kill -TERM $$"});
  EXPECT_TRUE(WatchedProcess(command.pid()).ends(kTestDeadline));
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(command.pid()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(info.si_code, CLD_EXITED);
}

}  // namespace
}  // namespace tutti
