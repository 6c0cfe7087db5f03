// examples/11_pipeline.cpp: a model in stages is trained to the bytes of one worker's.

#include <gmock/gmock.h>

#include <regex>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

using Words = std::vector<std::string>;

const std::string kProgram = std::string(TUTTI_EXAMPLES) + "/pipeline";

/// On so many workers, a small model of five layers.
Finished pipeline(int workers, const Words& options) {
  Words all{"run", "-n", std::to_string(workers), kProgram};
  const Words small{"--text",   std::string(TUTTI_SOURCE) + "/LICENSE",
                    "--rows",   "3",
                    "--length", "12",
                    "--width",  "12",
                    "--heads",  "2",
                    "--blocks", "3",
                    "--shards", "6"};
  all.insert(all.end(), small.begin(), small.end());
  all.insert(all.end(), options.begin(), options.end());
  return run_command(all, {.environment = {"TUTTI_LOG=debug"}});  // all settings
}

/// "step S loss L parameters sha256 …", which there is once, or "".
std::string end_of(const Finished& run) {
  const std::regex pattern("step [0-9]+ loss [0-9.]+ parameters sha256 [0-9a-f]{64}");
  std::sregex_iterator match(run.out.begin(), run.out.end(), pattern);
  return run.status == 0 && std::distance(match, {}) == 1 ? match->str() : "";
}

std::vector<double> losses_of(const Finished& run) {
  std::vector<double> found;
  const std::regex pattern("step [0-9]+/[0-9]+  loss ([0-9.]+)");
  for (std::sregex_iterator match(run.out.begin(), run.out.end(), pattern), end; match != end;
       ++match) {
    found.push_back(std::stod((*match)[1]));
  }
  return found;
}

TEST(PipelineExample, EndsWithTheSameBytesInAnyNumberOfStagesOnAnyNumberOfPipelines) {
  const auto alone = pipeline(1, {"--steps", "3"});
  ASSERT_NE(end_of(alone), "") << alone.out << alone.err;
  EXPECT_NE(end_of(pipeline(1, {"--steps", "3", "--seed", "2"})), end_of(alone));
  struct Case {
    int workers;
    Words options;
    std::string shape;
  };
  const std::vector<Case> cases = {
      {2, {"--stages", "1"}, "1f1b, stages of 5 layers from [0, 5]"},
      {2, {"--schedule", "gpipe"}, "gpipe, stages of 5 layers from [0, 2, 5]"},
      {2, {"--schedule", "zb-h1"}, "zb-h1, stages of 5 layers from [0, 2, 5]"},
      {2, {"--schedule", "interleaved"}, "interleaved, stages of 5 layers from [0, 1, 2, 3, 5]"},
      {3, {"--stages", "3"}, "1f1b, stages of 5 layers from [0, 1, 3, 5]"},
      {3, {"--schedule", "zb-h1"}, "zb-h1, stages of 5 layers from [0, 1, 3, 5]"},
      {4, {"--stages", "2"}, "shards [0, 3) [0, 3) [3, 6) [3, 6)"},
  };
  for (const auto& [workers, more, shape] : cases) {
    Words options{"--steps", "3"};
    options.insert(options.end(), more.begin(), more.end());
    const auto run = pipeline(workers, options);
    EXPECT_EQ(end_of(run), end_of(alone)) << shape << "\n" << run.out << run.err;
    EXPECT_EQ(losses_of(run), losses_of(alone)) << shape;
    EXPECT_THAT(run.err, HasSubstr(shape));
  }
}

TEST(PipelineExample, Learns) {
  const auto losses = losses_of(pipeline(2, {"--steps", "80"}));
  ASSERT_EQ(losses.size(), 5);
  EXPECT_LT(losses.back(), losses.front() - 0.2);
}

TEST(PipelineExample, StopsInThreeStagesAndGoesOnInAnyNumber) {
  const TemporaryFolder folder;
  const auto saved = folder.file("run");
  const auto straight = pipeline(1, {"--steps", "5"});
  ASSERT_NE(end_of(straight), "") << straight.err;
  const auto first = pipeline(3, {"--stages", "3", "--steps", "3", "--save", saved});
  ASSERT_EQ(first.status, 0) << first.err;
  const std::vector<std::pair<int, Words>> ways = {
      {1, {}}, {2, {"--schedule", "zb-h1"}}, {4, {"--stages", "2", "--schedule", "gpipe"}}};
  for (const auto& [workers, more] : ways) {
    Words options{"--steps", "5", "--load", saved};
    options.insert(options.end(), more.begin(), more.end());
    const auto second = pipeline(workers, options);
    EXPECT_THAT(second.out, HasSubstr("resumed from step 3\n"));
    EXPECT_EQ(end_of(second), end_of(straight)) << workers << second.out << second.err;
  }
}

TEST(PipelineExample, SaysWhatIsWrongWithItsOptions) {
  EXPECT_THAT(pipeline(2, {"--stages", "6"}).err,
              HasSubstr("a pipeline of 6 stages and 5 layers: a stage has at least one layer"));
  EXPECT_THAT(pipeline(3, {"--stages", "2"}).err,
              HasSubstr("3 workers for pipelines of 2: start a multiple of 2"));
  EXPECT_THAT(pipeline(1, {"--load", "/no/such"}).err, HasSubstr("there is no checkpoint in"));
  const auto run = pipeline(1, {"--schedule", "2f2b"});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("--schedule: "));
  EXPECT_THAT(run.err, HasSubstr("--help lists the options"));
  const auto heads = run_command({"run", "-n", "1", kProgram, "--text", "-", "--heads", "5"});
  EXPECT_EQ(heads.status, 2);
  EXPECT_THAT(heads.err, HasSubstr("--width: is no multiple of --heads"));
}

}  // namespace
}  // namespace tutti::test
