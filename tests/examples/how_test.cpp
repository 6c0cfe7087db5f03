// The answers of docs/how.md run on 1 and 2 workers, with one result, and with one model on all
// workers. What an answer promises beside that, its program requires by itself.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

const std::string kProgram = std::string(TUTTI_EXAMPLES) + "/how";

/// What the expression's group matched in each line.
std::vector<std::string> found_in(const std::string& text, const std::string& expression) {
  std::vector<std::string> found;
  const std::regex pattern(expression);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) found.push_back(match[1]);
  }
  return found;
}

/// The result that rank 0 prints; workers end with the same parameters.
std::string result_of(const std::string& answer, int workers) {
  const TemporaryFolder folder;
  // The file is what safetensors.torch.save_file(model.state_dict(), …) wrote in Python, each
  // tensor 0, 1, 2 …
  std::filesystem::copy(std::string(TUTTI_SOURCE) + "/tests/examples/programs/weights.safetensors",
                        folder.file("weights.safetensors"));
  const auto run =
      run_command({"run", "-n", std::to_string(workers), kProgram, answer, folder.file("")});
  EXPECT_EQ(run.status, 0) << answer << " on " << workers << ": " << run.err;
  const auto digests = found_in(run.out, "parameters sha256 ([0-9a-f]{64})");
  EXPECT_EQ(digests.size(), static_cast<std::size_t>(workers));
  EXPECT_EQ(std::set<std::string>(digests.begin(), digests.end()).size(), 1u) << run.out;
  const auto results = found_in(run.out, "result (.*)");
  return results.size() == 1 ? results[0] : "none: " + run.out;
}

class How : public ::testing::TestWithParam<const char*> {};

// findings-3: D6
TEST_P(How, AnswersOfOneAndOfTwoWorkersAreTheSame) {
  EXPECT_EQ(result_of(GetParam(), 1), result_of(GetParam(), 2));
}

INSTANTIATE_TEST_SUITE_P(Answers, How,
                         ::testing::Values("stop_early", "stop_a_trainer_early", "freeze",
                                           "freeze_in_a_trainer", "rates", "rates_of_a_trainer",
                                           "autocast", "autocast_in_a_trainer", "ema",
                                           "ema_of_a_trainer", "sums", "log_metrics",
                                           "from_python"),
                         [](const auto& info) { return std::string(info.param); });

TEST(HowAnswers, WithUnevenDataTheWorkerWithMostBatchesDecidesTheSteps) {
  EXPECT_EQ(result_of("uneven", 1), "2 steps");
  EXPECT_EQ(result_of("uneven", 2), "3 steps");
  EXPECT_EQ(result_of("uneven", 3), "4 steps");
}

/// What the page's command that begins so has in single quotes: a script for the workers' shell.
std::string script_of_page(const std::string& before) {
  const auto page = read_file(std::string(TUTTI_SOURCE) + "/docs/how.md");
  const auto begin = page.find("build/bin/tutti run -n 2 --deadline 86400 sh -c '" + before);
  const auto quote = page.find('\'', begin) + 1;
  EXPECT_LT(begin, page.size()) << before;
  return page.substr(quote, page.find('\'', quote) - quote);
}

Finished run_under(const std::string& script, const CommandSetup& setup = {}) {
  return run_command({"run", "-n", "2", "--deadline", "86400", "sh", "-c", script, "sh",
                      std::string(TUTTI_EXAMPLES) + "/readme"},
                     setup);
}

TEST(HowAnswers, OneWorkerIsStartedByADebugger) {
  const TemporaryFolder folder;
  const auto gdb = folder.file("gdb");
  std::ofstream(gdb) << "#!/bin/sh\necho debugs rank $TUTTI_RANK: $*\n"
                        "while [ $1 != --args ]; do shift; done; shift; exec \"$@\"\n";
  std::filesystem::permissions(gdb, std::filesystem::perms::owner_all);
  const auto path = gdb.substr(0, gdb.rfind('/'));
  const auto run =
      run_under(script_of_page("if ["), {.environment = {"PATH=" + path + ":/usr/bin:/bin"}});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(found_in(run.out, "debugs rank ([0-9]: -batch -ex run -ex bt --args)"),
              ::testing::ElementsAre("1: -batch -ex run -ex bt --args"));
  EXPECT_THAT(found_in(run.out, "weights ([0-9a-f]{64})"), ::testing::SizeIs(2));
}

TEST(HowAnswers, WorkersTellTheirProcesses) {
  const auto run = run_under(script_of_page("echo"));
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(found_in(run.out, "rank ([01]) is process [0-9]+"),
              ::testing::UnorderedElementsAre("0", "1"));
}

TEST(Readme, ItsProgramEndsWithTheSameWeightsOnAllWorkers) {
  for (const int workers : {1, 2, 3}) {
    const auto run = run_command(
        {"run", "-n", std::to_string(workers), std::string(TUTTI_EXAMPLES) + "/readme"});
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.err, ::testing::Not(::testing::HasSubstr("warn")));
    const auto weights = found_in(run.out, "weights ([0-9a-f]{64})");
    EXPECT_EQ(weights.size(), static_cast<std::size_t>(workers));
    EXPECT_EQ(std::set<std::string>(weights.begin(), weights.end()).size(), 1u) << run.out;
  }
}

}  // namespace
}  // namespace tutti::test
