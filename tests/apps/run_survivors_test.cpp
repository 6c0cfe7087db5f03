// `tutti run --survivors`: workers that resume without one that failed, and when they are ended all
// the same.

#include <gmock/gmock.h>
#include <csignal>

#include "apps/shell_scripts.h"
#include "support/running_command.h"

namespace tutti {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Longer than the second after which workers of a failed run are asked to end.
constexpr const char* kOutlive = "sleep 1.5; ";

/// `rank 1` runs `script`, the others `others`.
std::string only_rank_1(const std::string& script, const std::string& others) {
  return "if [ $TUTTI_RANK = 1 ]; then " + script + "; else " + others + "; fi";
}

std::vector<std::string> without_hint(const std::string& err) {
  auto lines = lines_of(err);
  std::erase_if(lines, [](const auto& line) { return line.find("hint:") != std::string::npos; });
  return lines;
}

// promise: errors#when-a-worker-dies, launcher#when-the-others-resume
TEST(RunSurvivors, MakeAGroupOfTheirOwnWhenAWorkerIsKilled) {
  RunningCommand command({"run", "-n", "3", "--survivors", TUTTI_SURVIVING_WORKER});
  ASSERT_TRUE(command.wait_for("members=3", 3));
  ASSERT_TRUE(command.wait_for_numbers("pid", 3));
  for (const auto& line : lines_of(command.out)) {
    if (!line.starts_with("[1] pid=")) continue;
    ASSERT_EQ(kill(std::stoi(line.substr(8)), SIGKILL), 0);
  }
  EXPECT_EQ(command.finish(), 0) << command.err;
  EXPECT_THAT(numbers_after(command.out, "lost"), Each(1));
  const auto members = numbers_after(command.out, "members");
  EXPECT_THAT(std::vector(members.end() - 2, members.end()), Each(2));
  EXPECT_THAT(command.err, HasSubstr("tutti run: rank 1 of 3 failed: killed by signal SIGKILL (9); "
                                     "2 workers are left\n"));
  EXPECT_EQ(lines_of(command.err).back(),
            "tutti run: ranks 0 2 of 3 finished without rank 1 (killed by signal SIGKILL (9))");
}

// promise: launcher#when-the-others-resume
TEST(RunSurvivors, MakeAGroupOfTheirOwnWhenAWorkerExits) {
  const auto run = run_command({"run", "-n", "3", "--survivors", TUTTI_SURVIVING_WORKER, "exit"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(lines_of(run.err).back(),
            "tutti run: ranks 0 2 of 3 finished without rank 1 (exit status 3)");
}

// promise: launcher#when-the-others-resume
TEST(RunSurvivors, HaveAllTheTimeThatTheyNeed) {
  const auto run =
      run_script({"-n", "3", "--survivors"},
                 only_rank_1("echo oh >&2; exit 3", std::string(kOutlive) + "echo done"));
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.out, HasSubstr("[0] done"));
  EXPECT_THAT(run.out, HasSubstr("[2] done"));
  EXPECT_THAT(
      without_hint(run.err),
      ElementsAre("[1] oh", "tutti run: rank 1 of 3 failed: exit status 3; 2 workers are left",
                  "tutti run: ranks 0 2 of 3 finished without rank 1 (exit status 3)"));
}

// promise: launcher#when-the-others-resume
TEST(RunSurvivors, AreEndedWithoutTheOption) {
  const auto run = run_script({"-n", "3"}, only_rank_1("exit 3", "exec sleep 1000"));
  EXPECT_EQ(run.status, 3);
  EXPECT_THAT(run.err, Not(HasSubstr("left")));
  EXPECT_EQ(lines_of(run.err).back(), "tutti run: rank 1 of 3 failed first: exit status 3");
}

// promise: launcher#when-a-worker-fails, launcher#when-the-others-resume
TEST(RunSurvivors, AreEndedWhenFewerThanTheMinimumAreLeft) {
  const TemporaryFolder folder;
  const std::string script = "case $TUTTI_RANK in 1) exit 3;; 2) " + std::string(kOutlive) +
                             "exit 4;; *) exec sleep 1000;; esac";
  const auto run = run_script({"-n", "3", "--survivors", "--min-workers", "2"}, script);
  EXPECT_EQ(run.status, 3) << "that of the worker that failed first";
  const auto lines = without_hint(run.err);
  EXPECT_THAT(
      lines,
      ElementsAre(
          "tutti run: rank 1 of 3 failed: exit status 3; 2 workers are left",
          "tutti run: rank 2 failed too", "tutti run: rank 0 did not end and had to be stopped",
          "tutti run: the others were ended: --min-workers 2 asks for more than were left",
          "tutti run: rank 1 wrote nothing", "tutti run: rank 1 of 3 failed first: exit status 3"));
}

// promise: launcher#when-a-worker-fails, launcher#when-the-others-resume
TEST(RunSurvivors, NeedNotBeMoreThanOne) {
  const auto run =
      run_script({"-n", "3", "--survivors"}, "if [ $TUTTI_RANK != 2 ]; then exit 3; fi; " +
                                                 std::string(kOutlive) + "echo done");
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("; 1 worker is left\n"));
  EXPECT_THAT(lines_of(run.err).back(), HasSubstr("rank 2 of 3 finished without rank "));
}

// promise: launcher#when-the-others-resume
TEST(RunSurvivors, ThatHaveEndedWellCountAsLeft) {
  const TemporaryFolder folder;
  const auto go = folder.file("go");
  RunningCommand command({"run", "-n", "3", "--survivors", "--min-workers", "2", "/bin/sh", "-c",
                          "case $TUTTI_RANK in 0) echo pid=$$;; 1) " + wait_for_file(go) +
                              "exit 3;; 2) " + wait_for_file(folder.file("end")) + "esac"});
  ASSERT_TRUE(command.wait_for_numbers("pid"));
  ASSERT_TRUE(WatchedProcess(numbers_after(command.out, "pid").at(0)).ends(kTestDeadline));
  create_file(go);
  ASSERT_TRUE(command.wait_for("2 workers are left"));
  create_file(folder.file("end"));
  EXPECT_EQ(command.finish(), 0) << command.err;
}

// promise: errors#when-a-worker-dies
TEST(RunSurvivors, OfNobodyAreAFailedRun) {
  const auto run = run_script({"-n", "2", "--survivors"},
                              only_rank_1("exit 5", std::string(kOutlive) + "exit 6"));
  EXPECT_EQ(run.status, 5);
  EXPECT_THAT(run.err, HasSubstr("tutti run: rank 0 failed too\n"));
  EXPECT_EQ(lines_of(run.err).back(), "tutti run: rank 1 of 2 failed first: exit status 5");
}

// promise: launcher#when-the-others-resume
TEST(RunSurvivors, AreEndedByASignalLikeAnyWorkers) {
  RunningCommand command({"run", "-n", "3", "--survivors", "/bin/sh", "-c",
                          only_rank_1("exit 3",
                                      "trap 'exit 1' INT; echo ready; while :; do sleep "
                                      "0.05; done")});
  ASSERT_TRUE(command.wait_for("2 workers are left"));
  ASSERT_TRUE(command.wait_for("ready", 2));
  command.signal(SIGINT);
  EXPECT_EQ(command.finish(), 128 + SIGINT);
  EXPECT_THAT(command.err, Not(HasSubstr("finished without")));
}

// promise: errors#when-a-worker-dies
TEST(RunSurvivors, AreStartedAgainWithAllOthersWhenTheyAreTooFew) {
  // First two fail, then one: the second attempt finishes.
  const auto run =
      run_script({"-n", "3", "--survivors", "--min-workers", "2", "--restarts", "3"},
                 "[ $TUTTI_RANK != 0 ] && [ $TUTTI_RANK -gt $TUTTI_RESTART ] && exit 3; " +
                     std::string(kOutlive) + "echo attempt=$TUTTI_RESTART");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(numbers_after(run.out, "attempt"), Contains(1).Times(2));
  EXPECT_THAT(lines_of(run.err), Contains("tutti run: restart 1 of 3"));
  EXPECT_THAT(run.err, Not(HasSubstr("restart 2")));
  EXPECT_EQ(lines_of(run.err).back(),
            "tutti run: ranks 0 1 of 3 finished without rank 2 (exit status 3)");
}

// promise: launcher#when-the-others-resume
TEST(RunSurvivors, WhatALostWorkerHadStartedEndsWithIt) {
  const TemporaryFolder folder;
  const auto go = folder.file("go");
  RunningCommand command(
      {"run", "-n", "2", "--survivors", "/bin/sh", "-c",
       only_rank_1("sleep 1000 & echo child=$!; " + wait_for_file(folder.file("end")) + "exit 3",
                   wait_for_file(go) + "exit 0")});
  ASSERT_TRUE(command.wait_for_numbers("child"));
  const WatchedProcess child(numbers_after(command.out, "child").at(0));
  ASSERT_TRUE(child.exists());
  create_file(folder.file("end"));
  EXPECT_TRUE(child.ends(kTestDeadline)) << "while rank 0 works on";
  create_file(go);
  EXPECT_EQ(command.finish(), 0) << command.err;
}

// promise: launcher#when-the-others-resume
TEST(RunSurvivors, MinimumIsRefusedWhereItMakesNoSense) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--min-workers", "2"}, "tutti run: --min-workers 2: is for --survivors"},
      {{"--survivors", "--min-workers", "0"},
       "tutti run: --min-workers 0: must be 1 to 3, the number of workers"},
      {{"--survivors", "--min-workers", "4"},
       "tutti run: --min-workers 4: must be 1 to 3, the number of workers"},
      {{"--survivors", "--min-workers", ""}, "tutti run: --min-workers \"\": must be a number"}};
  for (const auto& [options, text] : cases) {
    std::vector<std::string> all{"-n", "3"};
    all.insert(all.end(), options.begin(), options.end());
    const auto run = run_script(all, "exit 0");
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(lines_of(run.err).front(), text);
  }
}

}  // namespace
}  // namespace tutti
