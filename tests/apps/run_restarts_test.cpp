// `tutti run --restarts`: what starts all workers again, what does not, and what an attempt leaves
// for the next one.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/shell_scripts.h"
#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr const char* kFirstFails = "if [ $TUTTI_RESTART = 0 ]; then exit 3; fi; ";

std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(text))
    if (line.find(part) != std::string::npos) found.push_back(line);
  return found;
}

// promise: job.h#restarts, launcher#starting-again, launcher#tutti-run-starting-workers
TEST(RunRestarts, WorkersThatFailOnceMeetAgain) {
  const auto run = run_command({"run", "-n", "3", "--restarts", "2", TUTTI_RESTARTED_WORKER});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(numbers_after(run.out, "restarts"), UnorderedElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(run.err, HasSubstr("tutti run: ranks 0 2 failed in consequence\n"));
  EXPECT_THAT(run.err,
              HasSubstr("tutti run: rank 1 of 3 failed first: killed by signal SIGKILL (9)\n"
                        "tutti run: restart 1 of 2\n"));
  EXPECT_THAT(lines_with(run.err, "tutti run: restart"), SizeIs(1));
  EXPECT_THAT(run.err, Not(HasSubstr("note:")));
}

// promise: launcher#starting-again, launcher#when-a-worker-fails
TEST(RunRestarts, EachAttemptReportsInFullAndTheLastOneCounts) {
  const auto run = run_script({"-n", "1", "--restarts", "2"},
                              "[ $TUTTI_RESTART = 1 ] || echo attempt $TUTTI_RESTART >&2; "
                              "exit $((3 + TUTTI_RESTART))");
  EXPECT_EQ(run.status, 5);
  auto lines = lines_of(run.err);
  std::erase_if(lines, [](const auto& line) { return line.find("hint:") != std::string::npos; });
  EXPECT_THAT(
      lines,
      ElementsAre("[0] attempt 0", "tutti run: rank 0 of 1 failed first: exit status 3",
                  "tutti run: restart 1 of 2", "tutti run: rank 0 wrote nothing",
                  "tutti run: rank 0 of 1 failed first: exit status 4", "tutti run: restart 2 of 2",
                  "[0] attempt 2", "tutti run: rank 0 of 1 failed first: exit status 5"));
}

// promise: launcher#starting-again
TEST(RunRestarts, ThereAreNoneUnlessAskedFor) {
  const CommandSetup stale{.environment = {"TUTTI_RESTART=7"}};
  for (const auto& options :
       {std::vector<std::string>{"-n", "1"}, {"-n", "1", "--restarts", "0"}}) {
    const auto run = run_script(options, "echo restart=$TUTTI_RESTART; exit 3", stale);
    EXPECT_EQ(run.status, 3);
    EXPECT_EQ(run.out, "[0] restart=0\n");
    EXPECT_THAT(run.err, Not(HasSubstr("restart ")));
  }
}

// promise: job.h#run_id, launcher#starting-again
TEST(RunRestarts, AllAttemptsAreOneRunAndNoOtherOne) {
  std::set<std::string> names;
  const CommandSetup stale{.environment = {"TUTTI_RUN=old"}};
  for (int run = 1; run <= 2; ++run) {
    const auto of_run =
        run_script({"-n", "2", "--restarts", "1"}, "echo run=$TUTTI_RUN; exit 3", stale);
    const auto lines = lines_with(of_run.out, "run=");
    EXPECT_THAT(lines, SizeIs(4)) << of_run.err;
    for (const auto& line : lines) names.insert(line.substr(line.find('=') + 1));
    EXPECT_THAT(names, SizeIs(run));
  }
  EXPECT_THAT(names, Each(SizeIs(16)));
}

// promise: launcher#starting-again
TEST(RunRestarts, SuccessEndsTheRun) {
  const auto run = run_script({"-n", "1", "--restarts", "5"}, "echo once");
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.out, "[0] once\n");
}

// promise: launcher#starting-again
TEST(RunRestarts, AnEndThatWasAskedForIsNoFailure) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    RunningCommand command(
        {"run", "-n", "2", "--restarts", "3", "/bin/sh", "-c",
         "trap 'exit 1' INT TERM HUP; echo ready; while :; do sleep 0.05; done"});
    ASSERT_TRUE(command.wait_for("ready", 2));
    command.signal(signal);
    EXPECT_EQ(command.finish(), 128 + signal);
    EXPECT_THAT(lines_with(command.out, "ready"), SizeIs(2));
    EXPECT_THAT(command.err, Not(HasSubstr("tutti run: restart")));
  }
}

TEST(RunRestarts, ARunThatFailsAgainAndAgainCanBeInterrupted) {
  RunningCommand command({"run", "-n", "2", "--restarts", "1000000", "/bin/sh", "-c", "exit 3"});
  ASSERT_TRUE(command.wait_for("restart 3 of 1000000"));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish(), 130);
}

// promise: launcher#starting-again
TEST(RunRestarts, AReaderThatLeavesEndsTheRun) {
  RunningCommand command(
      {"run", "-n", "1", "--restarts", "1000000", "/bin/sh", "-c", "echo on and on; exit 3"});
  ASSERT_TRUE(command.wait_for("restart 2 of"));
  command.close_out();
  EXPECT_EQ(command.finish(), 128 + SIGPIPE);
}

// promise: launcher#starting-again
TEST(RunRestarts, AProgramThatIsGoneIsNotTriedAgain) {
  const TemporaryFolder folder;
  const std::string program = folder.file("program");
  std::ofstream(program) << "#!/bin/sh\nrm " << program << "\nexit 3\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const auto run = run_command({"run", "-n", "1", "--restarts", "3", program});
  EXPECT_EQ(run.status, 126);
  EXPECT_THAT(lines_with(run.err, "tutti run: restart"), SizeIs(1));
  EXPECT_THAT(lines_of(run.err).back(), HasSubstr("cannot run \"" + program + "\""));
}

// promise: launcher#starting-again
TEST(RunRestarts, StartOnlyWhenAllWorkersAreGone) {
  const TemporaryFolder folder;
  const std::string pid = folder.file("pid");
  const auto run =
      run_script({"-n", "2", "--restarts", "1"},
                 "if [ $TUTTI_RESTART = 1 ]; then [ -d /proc/$(cat " + pid +
                     ") ] && echo there; exit 0; fi; " + "if [ $TUTTI_RANK = 1 ]; then " +
                     wait_for_file(pid) + "exit 3; fi; " + "trap '' TERM; echo $$ > " + pid +
                     ".part; mv " + pid + ".part " + pid + "; while :; do sleep 0.05; done");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("rank 0 did not end and had to be stopped"));
  EXPECT_EQ(run.out, "");
}

TEST(RunRestarts, ChildrenOfAnEarlierAttemptEndWithIt) {
  // Its streams are closed: nothing but its group ties it to the worker.
  const TemporaryFolder folder;
  RunningCommand command({"run", "-n", "1", "--restarts", "1", "/bin/sh", "-c",
                          "if [ $TUTTI_RESTART = 1 ]; then echo ready; " +
                              wait_for_file(folder.file("end")) +
                              "exit 0; fi; sleep 1000 > /dev/null 2>&1 & echo child=$!; " +
                              wait_for_file(folder.file("go")) + "exit 3"});
  ASSERT_TRUE(command.wait_for_numbers("child"));
  const WatchedProcess child(numbers_after(command.out, "child").at(0));
  ASSERT_TRUE(child.exists());
  create_file(folder.file("go"));
  ASSERT_TRUE(command.wait_for("ready"));
  EXPECT_TRUE(child.ends(kTestDeadline));  // while the second attempt runs
  create_file(folder.file("end"));
  EXPECT_EQ(command.finish(), 0);
}

TEST(RunRestarts, NothingOutlivesALauncherKilledInALaterAttempt) {
  RunningCommand command(
      {"run", "-n", "2", "--restarts", "1", "/bin/sh", "-c",
       std::string(kFirstFails) + "trap '' TERM HUP; sleep 1000 & echo pid=$$ child=$!; wait"});
  ASSERT_TRUE(command.wait_for_numbers("child", 2));
  std::vector<WatchedProcess> watched;
  for (const std::string name : {"pid", "child"})
    for (const int pid : numbers_after(command.out, name)) watched.emplace_back(pid);
  ASSERT_EQ(watched.size(), 4U);
  for (const auto& process : watched) ASSERT_TRUE(process.exists());
  command.signal(SIGKILL);
  EXPECT_EQ(command.finish(), 128 + SIGKILL);
  for (const auto& process : watched) EXPECT_TRUE(process.ends(kTestDeadline));
}

// promise: launcher#starting-again
TEST(RunRestarts, WorkersInheritNothingOfEarlierAttempts) {
  // 0, 1, 2, the socket, and the folder that ls itself has open.
  const auto run = run_script({"-n", "2", "--restarts", "3"},
                              "ls /proc/self/fd | wc -l; [ $TUTTI_RESTART = 3 ]");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("[0] 5\n"));
  EXPECT_THAT(lines_of(run.out), Each(::testing::AnyOf("[0] 5", "[1] 5")));
}

// promise: launcher#starting-again
TEST(RunRestarts, LogsGoOn) {
  const TemporaryFolder folder;
  const auto run = run_script({"-n", "1", "--restarts", "1", "--log", folder.file("logs")},
                              "echo attempt $TUTTI_RESTART; " + std::string(kFirstFails));
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(read_file(folder.file("logs/rank-0.log")),
            "attempt 0\ntutti run: restart 1 of 1: rank 0 failed: exit status 3\nattempt 1\n");
}

// part R writes a timeline of rank R.
constexpr const char* kWritePart =
    "part() { printf '{\"traceEvents\":[{\"pid\":%s}]}' $1 > $TUTTI_PROFILE.rank$1; }; ";

// promise: launcher#starting-again
TEST(RunRestarts, ATimelineIsThatOfTheLastAttempt) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  const auto run = run_script({"-n", "2", "--restarts", "1", "--profile", file},
                              kWritePart + std::string("part 0; [ $TUTTI_RESTART = 1 ] || ") +
                                  "{ echo broken > $TUTTI_PROFILE.rank1; exit 3; }");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(read_file(file))["traceEvents"].size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(file + ".rank0"));
  EXPECT_FALSE(std::filesystem::exists(file + ".rank1"));
}

// promise: launcher#starting-again
TEST(RunRestarts, ATimelineOfAnEarlierAttemptDoesNotPassForTheLast) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  const std::string script = kWritePart + std::string("part 0; exit 3");
  EXPECT_EQ(run_script({"-n", "1", "--profile", file}, script).status, 3);
  EXPECT_TRUE(std::filesystem::exists(file));
  const auto run = run_script({"-n", "1", "--restarts", "1", "--profile", file},
                              "[ $TUTTI_RESTART = 1 ] || { " + script + "; }");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace tutti
