// What `tutti schedule --profile` cannot show, and how it says so.

#include <gmock/gmock.h>
#include <filesystem>

#include "apps/recorded_pipelines.h"

namespace tutti {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ScheduleProfileRefusals, AFileThatIsNoTimelineIsSaidToBeNone) {
  const Trace trace;
  const auto missing = trace.svg();
  EXPECT_EQ(refusal(missing, {}, 1),
            "tutti schedule: " + missing + " cannot be read: No such file or directory");
  const auto folder = std::filesystem::path(missing).parent_path().string();
  EXPECT_EQ(refusal(folder, {}, 1),
            "tutti schedule: " + folder + " cannot be read: Is a directory");
  const auto whole = raw_step(R"("ts":10,"dur":2)", R"("ts":15,"dur":3.0)");
  EXPECT_THAT(shown(trace.raw(whole)), HasSubstr("0.008 ms"));
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1})
    EXPECT_THAT(refusal(trace.raw(whole.substr(0, size)), {}, 1),
                EndsWith("raw.json is not JSON: error at byte " + std::to_string(size + 1)));
  EXPECT_THAT(refusal(trace.raw(whole + "]"), {}, 1), HasSubstr("raw.json is not JSON: error at"));
  for (const std::string other : {"{}", "3", R"({"steps":[],"a":{"traceEvents":[]}})"}) {
    EXPECT_THAT(refusal(trace.raw(other), {}, 1),
                EndsWith("raw.json is no timeline of tutti run --profile: it has no list "
                         "\"traceEvents\""));
  }
}

TEST(ScheduleProfileRefusals, EventsThatAreNotCompleteAreNamed) {
  const Trace trace;
  const std::string good = R"("ts":15,"dur":3.0)";
  for (const auto& [bad, text] : std::vector<std::pair<std::string, std::string>>{
           {R"("dur":3)", "has no \"ts\""},
           {R"("ts":"4","dur":3)", "has no \"ts\""},
           {R"("ts":4)", "has no \"dur\""},
           {R"("ts":4,"dur":-1)", "has an impossible \"dur\""},
           {R"("ts":1e300,"dur":1)", "has an impossible \"ts\""},
           {R"("ts":1,"dur":1,"tid":-1e17)", "has an impossible \"tid\""}}) {
    EXPECT_THAT(refusal(trace.raw(raw_step(bad, good)), {}, 1),
                EndsWith("raw.json: event 2 " + text));
  }
  const std::string nameless = R"([{"ph":"X","pid":0,"ts":1,"dur":1}])";
  EXPECT_THAT(refusal(trace.raw(nameless), {}, 1), EndsWith(": event 1 has no \"name\""));
  EXPECT_THAT(refusal(trace.raw(R"([{"ph":"X","name":"a","ts":1,"dur":1}])"), {}, 1),
              EndsWith(": event 1 has no \"pid\""));
  EXPECT_THAT(refusal(trace.raw(raw_step(good, R"("ts":20,"dur":3.0,"pid":1024)")), {}, 1),
              EndsWith("raw.json: backward of stage 0, micro-batch 0 on worker 1024: must be 0 to "
                       "1023"));
}

TEST(ScheduleProfileRefusals, WhatATimelineDoesNotHaveIsSaidWithWhatItHas) {
  Trace trace;
  trace.add({{0, step_name(1, "model"), 5, 9}, {0, "forward of stage 0, micro-batch 0", 20, 22}});
  auto file = trace.written();
  EXPECT_EQ(refusal(file, {}, 1),
            "tutti schedule: " + file +
                " has no step with computes of a pipeline: a Trainer with a pipeline records them");

  const auto whole = actions_of(PipelineSchedule::gpipe(2, 3));
  auto part = whole;
  part.pop_back();
  for (const int k : {3, 4, 5, 9, 11}) trace.add(step_of(k, part, 0, 100 * k));
  file = trace.written();
  EXPECT_EQ(refusal(file, {}, 1),
            "tutti schedule: " + file +
                " has no complete step of \"model\": not every micro-batch has been through all "
                "stages and back; --step draws what there is of one: it has steps 1 3-5 9 11");
  EXPECT_EQ(refusal(file, {"--step", "7"}, 2),
            "tutti schedule: --step 7: " + file + " has steps 1 3-5 9 11 of \"model\"");
  EXPECT_THAT(shown(file, {"--step", "9"}), StartsWith("measured in step 9 of \"model\" (not co"));
  EXPECT_EQ(refusal(file, {"--step", "9", "--pipeline", "1"}, 2),
            "tutti schedule: --pipeline 1: step 9 of \"model\" has one pipeline, 0");
  for (int k = 20; k < 60; k += 2) trace.add(step_of(k, part, 0, 100 * k));
  EXPECT_THAT(refusal(trace.written(), {"--step", "7"}, 2),
              EndsWith("has steps 1 3-5 9 11 20 22 24 26 … 58 of \"model\""));
}

TEST(ScheduleProfileRefusals, ATimelineWithoutTheFirstWorkerOfAPipelineSaysSo) {
  const auto whole = actions_of(PipelineSchedule::gpipe(3, 2));
  std::vector<TimedAction> part;
  for (const auto& timed : whole) {
    if (timed.worker != 0) part.push_back(timed);
  }
  Trace trace;
  const auto file = trace.add(step_of(1, part, 0, 5)).add(step_of(1, whole, 3, 5)).written();
  for (const auto& options : {std::vector<std::string>{}, {"--step", "1"}}) {
    EXPECT_EQ(refusal(file, options, 1),
              "tutti schedule: " + file +
                  " does not show which ranks form a pipeline of \"model\": in no step do "
                  "neighbours have the stages 0 to 2 between them, each once; the part of a worker "
                  "may be missing");
  }
}

TEST(ScheduleProfileRefusals, OptionsOfBothKindsExcludeEachOther) {
  const std::vector<std::pair<std::string, std::string>> predicted = {
      {"--stages", "2"},          {"--micro-batches", "2"}, {"--kind", "1f1b"},
      {"--workers", "2"},         {"--forward", "1"},       {"--backward-input", "1"},
      {"--backward-weight", "1"}, {"--transfer", "0"},      {"--activation-mb", "0"},
      {"--weight-half-mb", "0"}};
  for (const auto& [option, value] : predicted) {
    EXPECT_EQ(refusal("nowhere", {option, value}, 2),
              "tutti schedule: " + option +
                  ": not together with --profile, which shows what was measured");
  }
  const std::vector<std::pair<std::string, std::string>> measured = {
      {"--step", "2"}, {"--pipeline", "0"}, {"--trainer", "model"}};
  for (const auto& [option, value] : measured) {
    const auto run =
        run_command({"schedule", "--stages", "2", "--micro-batches", "2", option, value});
    EXPECT_EQ(run.status, 2);
    EXPECT_EQ(run.err,
              "tutti schedule: " + option + ": is for --profile\nSee tutti schedule --help.\n");
  }
}

}  // namespace
}  // namespace tutti
