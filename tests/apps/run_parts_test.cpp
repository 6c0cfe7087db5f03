#include <gmock/gmock.h>
#include <CLI/CLI.hpp>

#include "apps/tutti/run/escalation.h"
#include "apps/tutti/run/processor_set.h"
#include "apps/tutti/run/run_options.h"
#include "apps/tutti/run/worker_environment.h"
#include "apps/tutti/run/worker_output.h"
#include "apps/tutti/text/refusal.h"

namespace tutti::command {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;

std::size_t start_of(const std::vector<std::string>& arguments) {
  CLI::App app;
  RunOptions options;
  add_run_options(app, options);
  return program_start(app, arguments);
}

TEST(ProgramStart, IsTheFirstThatIsNoOptionOfOurs) {
  EXPECT_EQ(start_of({"-n", "2", "prog", "-n", "9"}), 2U);
  EXPECT_EQ(start_of({"-n2", "--threads=3", "--log", "dir", "prog", "--threads"}), 4U);
  EXPECT_EQ(start_of({"-n", "2", "--", "--odd-name"}), 2U);
  EXPECT_EQ(start_of({"prog", "-n", "2"}), 0U);
  EXPECT_EQ(start_of({"-n", "2"}), 2U);
  EXPECT_EQ(start_of({"--help", "prog"}), 1U);
  EXPECT_THROW(start_of({"--thread", "3", "prog"}), Refusal);
}

TEST(RankPrefix, HasOneWidthPerRun) {
  EXPECT_EQ(rank_prefix(0, 1, false), "[0] ");
  EXPECT_EQ(rank_prefix(9, 10, false), "[9] ");
  EXPECT_EQ(rank_prefix(9, 11, false), "[ 9] ");
  EXPECT_EQ(rank_prefix(10, 11, false), "[10] ");
  EXPECT_EQ(rank_prefix(0, 2, true), "\x1b[36m[0]\x1b[0m ");
  EXPECT_NE(rank_prefix(0, 2, true).substr(0, 5), rank_prefix(1, 2, true).substr(0, 5));
}

TEST(RankPrefix, OfSeveralRanksHasRanges) {
  EXPECT_EQ(ranks_prefix({0, 1}), "[0-1] ");
  EXPECT_EQ(ranks_prefix({0, 1, 2, 5, 7, 8}), "[0-2,5,7-8] ");
  EXPECT_EQ(ranks_prefix({3}), "[3] ");
}

// promise: launcher#when-a-worker-fails
TEST(Escalation, AsksThenTerminatesThenKills) {
  const Clock::time_point start{};
  Escalation escalation;
  EXPECT_FALSE(escalation.due(start + seconds(100)));
  escalation.begin(start);
  EXPECT_FALSE(escalation.due(start + milliseconds(999)));
  EXPECT_EQ(escalation.due(start + seconds(1)), SIGTERM);
  escalation.begin(start + seconds(2));  // a second failure does not start the clock again
  EXPECT_FALSE(escalation.due(start + milliseconds(2999)));
  EXPECT_EQ(escalation.due(start + seconds(3)), SIGKILL);
  EXPECT_FALSE(escalation.due(start + seconds(100)));
}

TEST(Escalation, HurryKillsAtOnce) {
  const Clock::time_point start{};
  Escalation escalation;
  escalation.begin(start);
  escalation.hurry(start);
  EXPECT_EQ(escalation.due(start), SIGKILL);
  escalation.hurry(start);
  EXPECT_FALSE(escalation.due(start + seconds(9)));
}

TEST(ProcessorsOf, GivesEachWorkerItsOwn) {
  const std::vector<int> allowed = {1, 3, 5, 7, 9};
  EXPECT_THAT(processors_of(0, 2, 2, allowed), ElementsAre(1, 3));
  EXPECT_THAT(processors_of(1, 2, 2, allowed), ElementsAre(5, 7));
  EXPECT_THROW(processors_of(0, 3, 2, allowed), Refusal);
}

TEST(ProcessorMask, SetsOneBitEach) {
  EXPECT_THAT(processor_mask(std::vector<int>{0, 2, 64}), ElementsAre(5UL, 1UL));
}

// promise: environment.h#rank, launcher#what-a-worker-gets
TEST(EnvironmentOf, ReplacesWhatWasInherited) {
  const WorkerEnvironment own{.rank = 2,
                              .size = 3,
                              .threads = 4,
                              .restart = 1,
                              .rendezvous_fd = 9,
                              .run = "5eed",
                              .deadline = "",
                              .profile = "/tmp/p",
                              .libraries = {{"MKL_CBWR", "AVX2"}}};
  EXPECT_THAT(
      environment_of(own, {"A=1", "OMP_NUM_THREADS=8", "TUTTI_DEADLINE=5", "TUTTI_RANK=7",
                           "TUTTI_RESTART=6", "TUTTI_HOSTS=4,4", "TUTTI_RUN=old", "MKL_CBWR="}),
      ElementsAre("A=1", "TUTTI_DEADLINE=5", "TUTTI_RANK=2", "TUTTI_SIZE=3", "TUTTI_RESTART=1",
                  "TUTTI_RUN=5eed", "TUTTI_RENDEZVOUS_FD=9", "TUTTI_THREADS=4", "OMP_NUM_THREADS=4",
                  "MKL_NUM_THREADS=4", "TUTTI_PROFILE=/tmp/p", "MKL_CBWR=AVX2"));
  WorkerEnvironment of_hosts = own;
  of_hosts.hosts = "2,1";
  EXPECT_THAT(environment_of(of_hosts, {"TUTTI_HOSTS=4,4"}), Contains("TUTTI_HOSTS=2,1"));
}

}  // namespace
}  // namespace tutti::command
