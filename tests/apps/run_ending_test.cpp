// A signal that lets workers save what they have: `tutti run` gives them the time, and its status
// says that the run is to be resumed.

#include <gmock/gmock.h>
#include <chrono>
#include <csignal>
#include <thread>

#include "apps/shell_scripts.h"
#include "support/running_command.h"
#include "tutti/job.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

/// Workers that make steps, and save when they are asked to end.
struct Steps {
  Steps(std::vector<std::string> options, milliseconds save,
        std::vector<std::string> where = {"-n", "2"})
      : command([&] {
          std::vector<std::string> words = {"run"};
          words.insert(words.end(), where.begin(), where.end());
          words.insert(words.end(), options.begin(), options.end());
          words.insert(words.end(), {TUTTI_ENDING_WORKER, std::to_string(save.count())});
          return words;
        }()) {
    EXPECT_TRUE(command.wait_for_numbers("stepping", 2));
  }
  RunningCommand command;
};

// promise: launcher#end-in-time
TEST(RunEnding, ASignalLeavesWorkersTheTimeToSave) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    // Longer than a worker has that is only asked to end.
    Steps run({"--restarts", "2"}, milliseconds(2500));
    run.command.signal(signal);
    EXPECT_EQ(run.command.finish(), kResumeStatus) << run.command.err;
    EXPECT_THAT(numbers_after(run.command.out, "saved"), SizeIs(2));
    EXPECT_THAT(numbers_after(run.command.out, "stepping"), SizeIs(2)) << "not started again";
    EXPECT_THAT(run.command.err, HasSubstr("workers save and end"));
    EXPECT_THAT(run.command.err, HasSubstr("start the run again to resume it (status 75)"));
    EXPECT_THAT(run.command.err, Not(HasSubstr("failed")));
  }
}

// promise: launcher#end-in-time
TEST(RunEnding, ASignalToOneWorkerIsHeardByAll) {
  Steps run({"--restarts", "2"}, milliseconds(1500));  // rank 0 ends long before rank 1
  kill(numbers_after(run.command.out, "stepping").at(1), SIGUSR1);
  EXPECT_EQ(run.command.finish(), kResumeStatus) << run.command.err;
  EXPECT_THAT(numbers_after(run.command.out, "saved"), SizeIs(2));
  EXPECT_THAT(run.command.err, Not(HasSubstr("failed")));
}

// promise: launcher#end-in-time
TEST(RunEnding, AnotherSignalEndsWorkersThatSaveAtOnce) {
  Steps run({}, seconds(300));
  run.command.signal(SIGTERM);
  ASSERT_TRUE(run.command.wait_for_numbers("saves", 2));
  std::this_thread::sleep_for(milliseconds(1500));  // a second after the first it is another one
  const auto begin = steady_clock::now();
  run.command.signal(SIGTERM);
  EXPECT_EQ(run.command.finish(), 128 + SIGTERM) << run.command.err;
  EXPECT_LT(steady_clock::now() - begin, seconds(30));
  EXPECT_THAT(numbers_after(run.command.out, "saved"), SizeIs(0));
}

// promise: launcher#end-in-time
TEST(RunEnding, CtrlCSavesNothing) {
  Steps run({}, seconds(300));
  run.command.signal(SIGINT);
  EXPECT_EQ(run.command.finish(), 128 + SIGINT) << run.command.err;
  EXPECT_THAT(run.command.err, HasSubstr("ending all workers"));
  EXPECT_THAT(numbers_after(run.command.out, "saves"), SizeIs(0));
}

// promise: launcher#end-in-time
TEST(RunEnding, OnSeveralHostsAllSaveToo) {
  const TemporaryFolder folder;
  const auto shell = write_remote_shell(folder.file("ssh"));
  const std::vector<std::string> hosts = {"--hosts", "localhost:1,127.0.0.1:1", "--ssh", shell};
  {
    // Longer than the launcher of a host has that is only asked to end.
    Steps run({"--restarts", "2"}, milliseconds(5500), hosts);
    run.command.signal(SIGUSR1);
    EXPECT_EQ(run.command.finish(), kResumeStatus) << run.command.err;
    EXPECT_THAT(numbers_after(run.command.out, "saved"), SizeIs(2));
    EXPECT_THAT(run.command.err, HasSubstr("start the run again to resume it (status 75)"));
  }
  Steps run({"--restarts", "2"}, milliseconds(10), hosts);
  kill(numbers_after(run.command.out, "stepping").at(1), SIGTERM);
  EXPECT_EQ(run.command.finish(), kResumeStatus) << run.command.err;
  EXPECT_THAT(numbers_after(run.command.out, "saved"), SizeIs(2));
}

// promise: launcher#end-in-time
TEST(RunEnding, ARunThatCompletesAfterTheSignalIsComplete) {
  RunningCommand command({"run", "-n", "2", TUTTI_ENDING_WORKER, "-1"});
  ASSERT_TRUE(command.wait_for_numbers("stepping", 2));
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(), 0) << command.err;
}

// promise: launcher#end-in-time
TEST(RunEnding, AWorkerThatFailsAfterTheSignalIsReportedAndNothingIsStartedAgain) {
  RunningCommand command({"run", "-n", "2", "--restarts", "2", TUTTI_ENDING_WORKER, "-2"});
  ASSERT_TRUE(command.wait_for_numbers("stepping", 2));
  command.signal(SIGTERM);
  EXPECT_EQ(command.finish(), 128 + SIGABRT) << command.err;
  EXPECT_THAT(command.err, HasSubstr("rank 1 of 2 failed first: killed by signal SIGABRT"));
  EXPECT_THAT(numbers_after(command.out, "stepping"), SizeIs(2));
}

// promise: launcher#end-in-time
TEST(RunEnding, TheStatusAloneOfAProgramThatHeardNoSignalIsAFailure) {
  const auto done = run_script({"-n", "2"}, "exit 75");
  EXPECT_EQ(done.status, 75);
  EXPECT_THAT(done.err, HasSubstr("failed first: exit status 75"));
}

}  // namespace
}  // namespace tutti
