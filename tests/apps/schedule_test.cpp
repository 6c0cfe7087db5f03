// `tutti schedule`, as a user runs it.

#include <gmock/gmock.h>

#include "support/running_command.h"
#include "tutti/pipeline_timeline.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

// promise: launcher#tutti-schedule
TEST(ScheduleCommand, PrintsWhatIsPredicted) {
  const auto run = run_command({"schedule", "--stages", "3", "--micro-batches", "5"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const auto expected = simulate(PipelineSchedule::one_f_one_b(3, 5), PipelineCosts::equal(3));
  EXPECT_EQ(run.out, expected.text());
}

// promise: launcher#tutti-schedule, pipeline_timeline.h#equal
TEST(ScheduleCommand, TakesAllKindsAndCostsAndWritesThePicture) {
  const TemporaryFolder folder;
  const auto svg = folder.file("timeline.svg");
  const auto run = run_command({"schedule",
                                "--kind",
                                "interleaved",
                                "--stages",
                                "4",
                                "--workers",
                                "2",
                                "--micro-batches",
                                "6",
                                "--forward",
                                "2.5",
                                "--backward-input",
                                "3",
                                "--backward-weight",
                                "1.25",
                                "--transfer",
                                "0.5",
                                "--activation-mb",
                                "1.5",
                                "--weight-half-mb",
                                "0.25",
                                "--svg",
                                svg});
  EXPECT_EQ(run.status, 0) << run.err;
  const StageCosts costs{.forward_ms = 2.5,
                         .backward_input_ms = 3,
                         .backward_weight_ms = 1.25,
                         .activation_bytes = 1'500'000,
                         .weight_half_bytes = 250'000};
  const auto expected =
      simulate(PipelineSchedule::interleaved(2, 2, 6), PipelineCosts::equal(4, costs, 0.5));
  EXPECT_EQ(run.out, expected.text());
  EXPECT_EQ(read_file(svg), expected.picture());
  for (const char* kind : {"gpipe", "1f1b", "zb-h1"}) {
    const auto other = run_command({"schedule", "--stages=2", "--micro-batches=3",
                                    "--weight-half-mb=1", "--activation-mb=3", "--kind", kind});
    EXPECT_EQ(other.out, simulate(PipelineSchedule::named(kind, 0, 2, 3),
                                  PipelineCosts::equal(2, {.activation_bytes = 3'000'000,
                                                           .weight_half_bytes = 1'000'000}))
                             .text());
  }
}

TEST(ScheduleCommand, NumbersThatMakeNoSenseAreRefusedInOneLine) {
  const auto refusal = [](std::vector<std::string> options) {
    options.insert(options.begin(), {"schedule", "--stages", "4"});
    const auto run = run_command(options);
    EXPECT_EQ(run.status, 2) << run.out;
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(lines_of(run.err).size(), 2U) << run.err;
    EXPECT_THAT(run.err, HasSubstr("See tutti schedule --help."));
    return run.err;
  };
  EXPECT_THAT(refusal({}), HasSubstr("--micro-batches is required\n"));
  EXPECT_THAT(refusal({"--micro-batches", "0"}), HasSubstr("0 micro-batches: must be 1 or more"));
  EXPECT_THAT(refusal({"--micro-batches", "8", "--kind", "2f2b"}),
              HasSubstr("must be gpipe, 1f1b, interleaved or zb-h1"));
  EXPECT_THAT(refusal({"--micro-batches", "8", "--forward", "-1"}),
              HasSubstr("the forward of stage 0 takes -1 ms: must be 0 or more"));
  EXPECT_THAT(refusal({"--micro-batches", "8", "--activation-mb", "-1"}),
              HasSubstr("--activation-mb -1: must be 0 to 1000000000"));
  EXPECT_THAT(refusal({"--micro-batches", "8", "--kind", "interleaved", "--workers", "3"}),
              HasSubstr("4 stages on 3 workers"));
}

TEST(ScheduleCommand, WithoutAnythingToShowItSaysWhatIsMissing) {
  EXPECT_EQ(run_command({"schedule"}).err,
            "tutti schedule: --stages is required\nSee tutti schedule --help.\n");
  const auto run = run_command({"schedule", "--micro-batches", "4"});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.err, "tutti schedule: --stages is required\nSee tutti schedule --help.\n");
}

TEST(ScheduleCommand, APictureThatCannotBeWrittenIsNamedWithTheReason) {
  const TemporaryFolder folder;
  const auto path = folder.file("missing/timeline.svg");
  const auto run =
      run_command({"schedule", "--stages", "4", "--micro-batches", "8", "--svg", path});
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err,
            "tutti schedule: --svg " + path + ": cannot be written: No such file or directory\n");
}

}  // namespace
}  // namespace tutti
