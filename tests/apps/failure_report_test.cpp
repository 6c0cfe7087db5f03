#include "apps/tutti/run/failure_report.h"

#include <gmock/gmock.h>

namespace tutti::command {
namespace {

using ::testing::ElementsAre;

Outcome exited(int rank, int status) { return {rank, {.by_signal = false, .code = status}, false}; }
Outcome killed(int rank, int signal) { return {rank, {.by_signal = true, .code = signal}, false}; }
Outcome stopped(int rank) { return {rank, {.by_signal = true, .code = 15}, true}; }

/// Of a run that needs all its workers.
std::vector<std::string> report_of(int first, std::span<const Outcome> outcomes,
                                   std::span<const Blame> blames, const Written& written) {
  return failure_report(first, outcomes, blames, written, static_cast<int>(outcomes.size()));
}

TEST(FirstFailure, NoneWhenAllSucceed) {
  const std::vector outcomes = {exited(1, 0), exited(0, 0)};
  EXPECT_EQ(first_failure(outcomes, {}), std::nullopt);
}

TEST(FirstFailure, IsTheFirstThatEndedBadly) {
  const std::vector outcomes = {exited(3, 0), killed(2, 11), exited(0, 1)};
  EXPECT_EQ(first_failure(outcomes, {}), 2);
}

TEST(FirstFailure, AnEchoIsNotTheCauseEvenWhenItEndsFirst) {
  const std::vector outcomes = {exited(0, 1), exited(2, 1), killed(1, 11)};
  const std::vector<Blame> blames = {{0, 1, "lost"}, {2, 1, "lost"}};
  EXPECT_EQ(first_failure(outcomes, blames), 1);
}

TEST(FirstFailure, AChainOfBlameLeadsToItsEnd) {
  const std::vector outcomes = {exited(0, 1), exited(1, 1), exited(2, 9)};
  const std::vector<Blame> blames = {{0, 1, "lost"}, {1, 2, "lost"}};
  EXPECT_EQ(first_failure(outcomes, blames), 2);
}

TEST(FirstFailure, WhenAllBlameEachOtherTheFirstThatEnded) {
  const std::vector outcomes = {exited(1, 4), exited(0, 5)};
  const std::vector<Blame> blames = {{0, 1, "you"}, {1, 0, "no, you"}};
  EXPECT_EQ(first_failure(outcomes, blames), 1);
}

TEST(FirstFailure, BlameOnAWorkerThatSucceededChangesNothing) {
  const std::vector outcomes = {exited(1, 0), exited(0, 5), exited(2, 6)};
  const std::vector<Blame> blames = {{0, 1, "left early"}, {2, 1, "left early"}};
  EXPECT_EQ(first_failure(outcomes, blames), 0);
}

TEST(FirstFailure, AWorkerThatHadToBeStoppedDidNotFail) {
  const std::vector outcomes = {exited(0, 5), stopped(1)};
  const std::vector<Blame> blames = {{0, 1, "does not answer"}};
  EXPECT_EQ(first_failure(outcomes, blames), 0);
}

TEST(FailureReport, EndsWithWhoAndHow) {
  const std::vector outcomes = {killed(1, 11), exited(0, 1), exited(3, 1), stopped(2)};
  const Written last{.last_lines = {"step 17", "oh"}, .frames = {}};
  const std::vector<Blame> blames = {{0, 1, "lost"}};
  EXPECT_THAT(report_of(1, outcomes, blames, last),
              ElementsAre("tutti run: rank 0 failed in consequence", "tutti run: rank 3 failed too",
                          "tutti run: rank 2 did not end and had to be stopped",
                          "tutti run: rank 1 of 4 failed first: killed by signal SIGSEGV (11)"));
}

// promise: launcher#when-a-worker-fails
TEST(FailureReport, SaysWhyTheFirstFailedUnlessItWroteThatItself) {
  const std::vector outcomes = {exited(0, 5), stopped(1)};
  const std::vector<Blame> blames = {{0, 1, "rank 1 has not reached step 17\nframe #0"},
                                     {0, 1, "rank 1 has not reached step 17"}};
  const auto report = report_of(0, outcomes, blames, {});
  const std::string end =
      "tutti run: rank 0 of 2 failed first: exit status 5, after rank 1, which it blames and which "
      "had to be stopped";
  const std::string stopped_line = "tutti run: rank 1 did not end and had to be stopped";
  EXPECT_THAT(report,
              ElementsAre(stopped_line, "tutti run: rank 0: rank 1 has not reached step 17", end));
  const Written written{.last_lines = {"error: rank 1 has not reached step 17", "bye"},
                        .frames = {}};
  EXPECT_THAT(report_of(0, outcomes, blames, written), ElementsAre(stopped_line, end));
}

TEST(FailureReport, NamesTheWorkerThatEndedWellWhileOthersNeededIt) {
  const std::vector outcomes = {exited(2, 0), killed(1, 6), killed(0, 6)};
  const std::vector<Blame> blames = {{1, 2, "rank 2 ended"}, {0, 2, "rank 2 ended"}};
  const Written written{.last_lines = {"what(): rank 2 ended"}, .frames = {}};
  EXPECT_THAT(report_of(1, outcomes, blames, written),
              ElementsAre("tutti run: rank 0 failed too",
                          "tutti run: rank 1 of 3 failed first: killed by signal SIGABRT (6); it "
                          "blames rank 2, which ended by itself with exit status 0"));
}

// A step that was dropped for rank 1 is long over when rank 2 dies.
TEST(FailureReport, BlamesByTheLatestFailureAlone) {
  const std::vector outcomes = {exited(1, 0), killed(2, 9), killed(0, 6)};
  const std::vector<Blame> blames = {{0, 1, "rank 1 failed in step 3"}, {0, 2, "rank 2 ended"}};
  const Written written{.last_lines = {"what(): rank 2 ended"}, .frames = {}};
  EXPECT_EQ(report_of(0, outcomes, blames, written).back(),
            "tutti run: rank 0 of 3 failed first: killed by signal SIGABRT (6)");
}

// findings-3: C1
TEST(FirstFailure, AChainOfBlameGoesThroughAWorkerThatHadToBeStopped) {
  const std::vector outcomes = {exited(1, 5), stopped(0), exited(2, 3)};
  const std::vector<Blame> blames = {{0, 2, "rank 2 ended"}, {1, 0, "rank 2 ended"}};
  EXPECT_EQ(first_failure(outcomes, blames), 2);
}

// Rank 0 finds the deadline, rank 1 hears of it, and is the first that ends.
// findings-3: C1
TEST(FailureReport, FollowsTheBlameOfOthersToWhoHadToBeStopped) {
  const std::vector outcomes = {exited(1, 5), stopped(0), stopped(2)};
  const std::vector<Blame> blames = {{0, 2, "rank 2 has not reached barrier"},
                                     {1, 0, "rank 2 has not reached barrier (found by rank 0)"}};
  const Written written{.last_lines = {"rank 2 has not reached barrier (found by rank 0)"},
                        .frames = {}};
  EXPECT_EQ(report_of(1, outcomes, blames, written).back(),
            "tutti run: rank 1 of 3 failed first: exit status 5, after rank 2, which rank 0 blames "
            "and which had to be stopped");
}

// findings-3: C1
TEST(FailureReport, FollowsTheBlameOfOthersThatEndedWellToo) {
  const std::vector outcomes = {exited(0, 0), exited(1, 5), exited(2, 0)};
  const std::vector<Blame> blames = {{0, 2, "not reached"}, {1, 0, "not reached"}};
  const Written written{.last_lines = {"not reached"}, .frames = {}};
  EXPECT_EQ(report_of(1, outcomes, blames, written).back(),
            "tutti run: rank 1 of 3 failed first: exit status 5; rank 0 blames rank 2, which ended "
            "by itself with exit status 0");
}

TEST(FailureReport, SaysThatNothingWasWrittenAndWhereStackFramesAre) {
  const std::vector outcomes = {exited(0, 5)};
  EXPECT_THAT(report_of(0, outcomes, {}, {}),
              ElementsAre("tutti run: rank 0 wrote nothing",
                          "tutti run: rank 0 of 1 failed first: exit status 5"));
  const Written frames{.last_lines = {"what(): no"}, .frames = "stack frames: in logs/rank-0.log"};
  EXPECT_THAT(report_of(0, outcomes, {}, frames),
              ElementsAre("tutti run: rank 0: stack frames: in logs/rank-0.log",
                          "tutti run: rank 0 of 1 failed first: exit status 5"));
}

// promise: launcher#when-the-others-resume
TEST(FailureReport, OfTooFewSurvivorsCallsNoFailureTheConsequenceOfOneThatWasSurvived) {
  const std::vector outcomes = {killed(1, 9), exited(2, 4), stopped(0)};
  const std::vector<Blame> blames = {{0, 1, "rank 1 has ended"}, {2, 1, "rank 1 has ended"}};
  const Written written{.last_lines = {"step 3"}, .frames = {}};
  const std::string end = "tutti run: rank 1 of 3 failed first: killed by signal SIGKILL (9)";
  const std::string stopped_line = "tutti run: rank 0 did not end and had to be stopped";
  EXPECT_THAT(failure_report(1, outcomes, blames, written, 2),
              ElementsAre("tutti run: rank 2 failed too", stopped_line,
                          "tutti run: the others were ended: --min-workers 2 asks for more than "
                          "were left",
                          end));
  EXPECT_THAT(failure_report(1, outcomes, blames, written, 3),
              ElementsAre("tutti run: rank 2 failed in consequence", stopped_line, end));
  // Of one worker at least, nobody is left.
  const std::vector all = {killed(1, 9), exited(2, 4), exited(0, 4)};
  EXPECT_THAT(failure_report(1, all, blames, written, 1),
              ElementsAre("tutti run: ranks 0 2 failed too", end));
}

// promise: launcher#when-the-others-resume
TEST(Survivors, HaveFinishedWhereAsManyAsAreNeededEndedWellByThemselves) {
  const std::vector outcomes = {killed(1, 9), exited(2, 0), exited(0, 0)};
  EXPECT_TRUE(have_finished(outcomes, 2));
  EXPECT_FALSE(have_finished(outcomes, 3));
  Outcome obedient = exited(0, 0);
  obedient.was_ended = true;
  EXPECT_FALSE(have_finished(std::vector{killed(1, 9), exited(2, 4), obedient}, 1));
}

// promise: launcher#end-in-time
TEST(Survivors, HaveSavedWhereAsManyAsAreNeededHave) {
  const std::vector outcomes = {killed(1, 9), exited(2, 75), exited(0, 75)};
  EXPECT_TRUE(have_saved(outcomes, 2));
  EXPECT_FALSE(have_saved(outcomes, 3));
  EXPECT_TRUE(have_saved(std::vector{exited(0, 0), exited(1, 75)}, 2));
  EXPECT_FALSE(have_saved(std::vector{exited(0, 0), exited(1, 0)}, 2));
  EXPECT_FALSE(all_succeeded(outcomes));
  EXPECT_TRUE(all_succeeded(std::vector{exited(0, 0), exited(1, 0)}));
}

// promise: launcher#when-the-others-resume
TEST(Survivors, AreReportedWithAllThatWereLostAndWhy) {
  EXPECT_EQ(loss_line(killed(1, 9), 3, 2),
            "tutti run: rank 1 of 3 failed: killed by signal SIGKILL (9); 2 workers are left");
  EXPECT_EQ(loss_line(exited(0, 3), 3, 1),
            "tutti run: rank 0 of 3 failed: exit status 3; 1 worker is left");
  const std::vector outcomes = {killed(1, 9), exited(3, 4), exited(2, 0), exited(0, 0)};
  const std::vector<Blame> blames = {{0, 1, "rank 1 has ended"}, {3, 2, "rank 2 is late"}};
  const std::vector<Written> written = {
      {}, {}, {}, {.last_lines = {"bye"}, .frames = "stack frames: in logs/rank-3.log"}};
  EXPECT_THAT(survivors_report(outcomes, blames, written),
              ElementsAre("tutti run: rank 1 wrote nothing", "tutti run: rank 3: rank 2 is late",
                          "tutti run: rank 3: stack frames: in logs/rank-3.log",
                          "tutti run: ranks 0 2 of 4 finished without rank 1 (killed by signal "
                          "SIGKILL (9)), rank 3 (exit status 4)"));
}

TEST(RestartLine, SaysWhichOfHowManyAndWhy) {
  EXPECT_EQ(restart_line(2, 3), "tutti run: restart 2 of 3");
  EXPECT_EQ(restart_line_with_cause(killed(1, 9), 2, 3),
            "tutti run: restart 2 of 3: rank 1 failed: killed by signal SIGKILL (9)");
  EXPECT_EQ(restart_line_with_cause(exited(0, 3), 1, 1),
            "tutti run: restart 1 of 1: rank 0 failed: exit status 3");
}

TEST(Ending, ExitStatusIsAShells) {
  EXPECT_EQ(exited(0, 3).ending.exit_status(), 3);
  EXPECT_EQ(killed(0, 9).ending.exit_status(), 137);
}

}  // namespace
}  // namespace tutti::command
