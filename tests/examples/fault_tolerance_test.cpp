// Training under `tutti run --survivors`: a worker is lost, the others resume and end well.

#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string program_of(const std::string& name) { return std::string(TUTTI_EXAMPLES) + "/" + name; }

/// What the workers that finished print of their end, from the expression on.
std::vector<std::string> ends_of(const std::string& out, const std::string& expression) {
  std::vector<std::string> ends;
  const std::regex pattern(expression + ".*");
  for (std::sregex_iterator match(out.begin(), out.end(), pattern), end; match != end; ++match) {
    ends.push_back(match->str());
  }
  return ends;
}

const std::string kDigest = "parameters sha256 [0-9a-f]{64}";

/// The end of a run of the example in which nobody is lost, by one worker.
std::string undisturbed(const std::string& steps) {
  const TemporaryFolder folder;
  const auto run =
      run_command({"run", "-n", "1", program_of("fault_tolerance"), folder.file("run"), steps});
  const auto ends = ends_of(run.out, kDigest);
  return ends.size() == 1 ? ends[0] : "no end: " + run.out + run.err;
}

/// The process of a worker, as the example prints it.
pid_t process_of(int rank, const std::string& out) {
  const auto found = ends_of(out, "worker " + std::to_string(rank) + " is process ");
  return found.empty() ? -1 : std::stoi(found[0].substr(found[0].rfind(' ') + 1));
}

void expect_two_ends(const RunningCommand& command, const std::string& straight) {
  EXPECT_THAT(straight, StartsWith("parameters sha256 "));
  EXPECT_THAT(ends_of(command.out, kDigest), AllOf(SizeIs(2), Each(straight)));
}

// promise: errors#when-a-worker-dies, errors#a-trainer-resumes-from-its-checkpoint
TEST(FaultTolerance, ATrainerResumesFromItsCheckpointWithoutAKilledWorkerToTheSameBytes) {
  const auto straight = undisturbed("400");
  for (const int victim : {0, 1}) {
    const TemporaryFolder folder;
    const auto saved = folder.file("run");
    RunningCommand command(
        {"run", "-n", "3", "--survivors", program_of("fault_tolerance"), saved, "400"});
    ASSERT_TRUE(command.wait_for(" is process ", 3)) << command.err;
    ASSERT_TRUE(comes_true(
        [&] { return std::filesystem::exists(saved + "/step-00000010/manifest.json"); }));
    ASSERT_EQ(kill(process_of(victim, command.out), SIGKILL), 0);
    EXPECT_EQ(command.finish(), 0) << command.err;
    expect_two_ends(command, straight);
    EXPECT_THAT(command.out, HasSubstr("worker 1 of 2 resumes after step "));
    EXPECT_EQ(lines_of(command.err).back(),
              "tutti run: ranks " + std::string(victim == 0 ? "1 2" : "0 2") +
                  " of 3 finished without rank " + std::to_string(victim) +
                  " (killed by signal SIGKILL (9))");
  }
}

// promise: errors#a-trainer-resumes-from-its-checkpoint
TEST(FaultTolerance, TwoWorkersMayBeLostAtOnce) {
  const auto straight = undisturbed("400");
  const TemporaryFolder folder;
  const auto saved = folder.file("run");
  RunningCommand command(
      {"run", "-n", "4", "--survivors", program_of("fault_tolerance"), saved, "400"});
  ASSERT_TRUE(command.wait_for(" is process ", 4)) << command.err;
  ASSERT_TRUE(
      comes_true([&] { return std::filesystem::exists(saved + "/step-00000010/manifest.json"); }));
  for (const int victim : {0, 2}) {
    ASSERT_EQ(kill(process_of(victim, command.out), SIGKILL), 0);
  }
  EXPECT_EQ(command.finish(), 0) << command.err;
  expect_two_ends(command, straight);
  EXPECT_THAT(lines_of(command.err).back(),
              StartsWith("tutti run: ranks 1 3 of 4 finished without rank "));
}

// The others are told by PeerFailed while its process still lives.
// promise: errors#a-trainer-resumes-from-its-checkpoint
TEST(FaultTolerance, ATrainerResumesWithoutAWorkerThatFailsByItself) {
  const auto straight = undisturbed("30");
  for (const std::string where : {"shard", "step"}) {
    const TemporaryFolder folder;
    RunningCommand command({"run", "-n", "3", "--survivors", program_of("fault_tolerance"),
                            folder.file("run"), "30", where});
    EXPECT_EQ(command.finish(), 0) << command.err;
    expect_two_ends(command, straight);
    EXPECT_THAT(command.out, HasSubstr("worker 1 of 2 resumes after step 10\n"));
    EXPECT_EQ(lines_of(command.err).back(),
              "tutti run: ranks 0 1 of 3 finished without rank 2 (exit status 1)");
  }
}

// promise: errors#a-dataparallel-resumes-with-the-next-step
TEST(FaultTolerance, ADataParallelComputesWhatTheOthersAloneWouldHaveComputed) {
  const auto end_of_run = [](const std::string& how, const std::string& last_line) {
    RunningCommand command(
        {"run", "-n", "3", "--survivors", program_of("surviving_parallel"), how});
    EXPECT_EQ(command.finish(), 0) << command.err;
    EXPECT_EQ(lines_of(command.err).back(), last_line);
    const auto ends = ends_of(command.out, kDigest);
    EXPECT_THAT(ends, AllOf(SizeIs(2), Each(StartsWith("parameters sha256 ")))) << command.out;
    EXPECT_EQ(ends.front(), ends.back());
    return ends.front();
  };
  const auto run = run_command({"run", "-n", "3", program_of("surviving_parallel"), "leaves"});
  EXPECT_EQ(run.status, 0) << run.err;
  const auto alone = ends_of(run.out, kDigest);
  ASSERT_THAT(alone, SizeIs(2)) << run.out;
  const std::string finished = "tutti run: ranks 0 2 of 3 finished without rank 1 (";
  EXPECT_EQ(end_of_run("killed", finished + "killed by signal SIGKILL (9))"), alone.front());
  EXPECT_EQ(end_of_run("exits", finished + "exit status 3)"), alone.front());
  EXPECT_EQ(end_of_run("throws", finished + "exit status 1)"), alone.front());
}

}  // namespace
}  // namespace tutti::test
