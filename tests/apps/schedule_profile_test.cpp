// `tutti schedule --profile`: the timeline of a pipeline in a run, read from what the run recorded.

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <filesystem>

#include "apps/recorded_pipelines.h"
#include "support/sanitized.h"

namespace tutti {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string text_of(const std::string& title, const std::vector<TimedAction>& actions) {
  return PipelineTimeline(title, actions).text();
}

// promise: launcher#tutti-schedule, launcher#where-the-time-goes
TEST(ScheduleProfile, ShowsWhatAStepMeasuredAsItShowsASimulatedOne) {
  Trace trace;
  std::vector<std::vector<TimedAction>> steps;
  for (int k = 1; k <= 3; ++k) {  // of other times each
    steps.push_back(actions_of(PipelineSchedule::one_f_one_b(3, 5), k));
    trace.add(step_of(k, steps.back(), 0, 100 * k));
  }
  const auto file = trace.written();
  const auto run = schedule(file, {"--step", "2", "--svg", trace.svg()});
  EXPECT_EQ(run.err, "");
  const PipelineTimeline second(
      "measured in step 2 of \"model\" on ranks 0 1 2: 3 stages, 5 micro-batches", steps[1]);
  EXPECT_EQ(run.out, second.text());
  EXPECT_EQ(read_file(trace.svg()), second.picture());
  EXPECT_EQ(shown(file),
            text_of("measured in step 3 of \"model\" on ranks 0 1 2: 3 stages, 5 micro-batches",
                    steps[2]));
}

TEST(ScheduleProfile, TakesEveryKindOfSchedule) {
  for (const auto& schedule : {PipelineSchedule::gpipe(2, 3), PipelineSchedule::zb_h1(2, 3),
                               PipelineSchedule::interleaved(2, 2, 4),
                               PipelineSchedule::custom("alone", 2, 1,
                                                        {{{StageWork::forward, 0, 0},
                                                          {StageWork::forward, 1, 0},
                                                          {StageWork::backward, 1, 0},
                                                          {StageWork::backward_input, 0, 0},
                                                          {StageWork::backward_weight, 0, 0}}})}) {
    const auto actions = actions_of(schedule);
    Trace trace;
    const auto file = trace.add(step_of(7, actions, 0, 3)).written();
    EXPECT_EQ(shown(file),
              text_of("measured in step 7 of \"model\" on " +
                          std::string(schedule.workers() == 1 ? "rank 0" : "ranks 0 1") + ": " +
                          std::to_string(schedule.stages()) + " stages, " +
                          std::to_string(schedule.micro_batches()) + " micro-batches",
                      actions));
  }
}

TEST(ScheduleProfile, NeighbouringRanksOfTheGroupFormAPipeline) {
  // The ranks 1 to 8; the third pipeline has no micro-batch, and each a number of its own.
  Trace trace;
  std::vector<std::vector<TimedAction>> pipelines;
  for (const int p : {0, 1, 3}) {
    pipelines.push_back(actions_of(PipelineSchedule::zb_h1(2, p + 2), 0.5 + p));
    trace.add(step_of(4, pipelines.back(), 1 + 2 * p, 10 + p));
  }
  for (const int rank : {5, 6}) trace.add({{rank, step_name(4, "model"), 10, 90}});
  const auto file = trace.written();
  const auto title = [](int pipeline, const std::string& ranks, int micro_batches) {
    return "measured in step 4 of \"model\", pipeline " + std::to_string(pipeline) +
           " of 4 on ranks " + ranks + ": 2 stages, " + std::to_string(micro_batches) +
           " micro-batches";
  };
  EXPECT_EQ(shown(file), text_of(title(0, "1 2", 2), pipelines[0]));
  EXPECT_EQ(shown(file, {"--pipeline", "1"}), text_of(title(1, "3 4", 3), pipelines[1]));
  EXPECT_EQ(shown(file, {"--pipeline", "3"}), text_of(title(3, "7 8", 5), pipelines[2]));
  EXPECT_THAT(refusal(file, {"--pipeline", "2"}, 2),
              EndsWith(": --pipeline 2: ranks 5 6 computed nothing in step 4 of \"model\""));
  for (const std::string none : {"4", "-1"}) {
    EXPECT_THAT(
        refusal(file, {"--pipeline", none}, 2),
        EndsWith(": --pipeline " + none + ": step 4 of \"model\" has the pipelines 0 to 3"));
  }
}

// promise: launcher#where-the-time-goes
TEST(ScheduleProfile, AStepIsCompleteWhenAllPipelinesAreThroughAllStages) {
  const auto schedule = PipelineSchedule::zb_h1(2, 3);
  const auto whole = actions_of(schedule);
  // Whatever is missing, on whichever pipeline: the step before is shown. Under a sanitizer each
  // start of the command takes long.
  constexpr std::size_t kEach = test::kSanitized ? 5 : 1;
  for (std::size_t gone = 0; gone < whole.size(); gone += kEach) {
    auto part = whole;
    part.erase(part.begin() + static_cast<std::ptrdiff_t>(gone));
    for (const bool second : {false, true}) {
      Trace trace;
      trace.add(step_of(1, whole, 0, 5)).add(step_of(1, whole, 2, 5));
      trace.add(step_of(2, second ? whole : part, 0, 50));
      trace.add(step_of(2, second ? part : whole, 2, 50));
      const auto file = trace.written();
      EXPECT_THAT(shown(file), StartsWith("measured in step 1 of \"model\", pipeline 0 of 2"));
      const auto last = shown(file, {"--step", "2", "--pipeline", second ? "1" : "0"});
      EXPECT_THAT(last, StartsWith("measured in step 2 of \"model\" (not complete), pipeline"));
      EXPECT_EQ(last.substr(last.find('\n')), text_of("", part));
    }
  }
}

TEST(ScheduleProfile, AStepThatFailedAtOnceIsShownAsFarAsItCame) {
  // It does not show which ranks form a pipeline; the step before it does.
  const auto whole = actions_of(PipelineSchedule::gpipe(2, 4));
  const std::vector<TimedAction> begun(whole.begin(), whole.begin() + 2);
  const std::vector<TimedAction> begun_later(whole.begin(), whole.begin() + 3);
  Trace trace;
  trace.add(step_of(1, whole, 0, 5)).add(step_of(1, whole, 2, 5));
  trace.add(step_of(2, begun, 0, 50)).add(step_of(2, begun_later, 2, 50));
  for (const int rank : {1, 3}) trace.add({{rank, step_name(2, "model"), 49, 60}});
  const auto file = trace.written();
  EXPECT_EQ(shown(file, {"--step", "2"}),
            text_of("measured in step 2 of \"model\" (not complete), pipeline 0 of 2 on ranks 0 1: "
                    "2 stages, 2 micro-batches",
                    begun));
  EXPECT_EQ(shown(file, {"--step", "2", "--pipeline", "1"}),
            text_of("measured in step 2 of \"model\" (not complete), pipeline 1 of 2 on ranks 2 3: "
                    "2 stages, 3 micro-batches",
                    begun_later));
}

TEST(ScheduleProfile, OfAStepThatWasMadeAgainTheLastTimeCounts) {
  const auto before = actions_of(PipelineSchedule::gpipe(2, 2), 3);
  const auto after = actions_of(PipelineSchedule::gpipe(2, 2), 1);
  Trace trace;
  for (int k = 5; k <= 7; ++k) trace.add(step_of(k, before, 0, 100 * k));
  for (int k = 4; k <= 6; ++k) trace.add(step_of(k, after, 0, 1000 + 100 * k));
  const auto file = trace.written();
  const std::string rest = " of \"model\" on ranks 0 1: 2 stages, 2 micro-batches";
  EXPECT_EQ(shown(file), text_of("measured in step 6" + rest, after));
  EXPECT_EQ(shown(file, {"--step", "5"}), text_of("measured in step 5" + rest, after));
  EXPECT_EQ(shown(file, {"--step", "7"}), text_of("measured in step 7" + rest, before));
}

TEST(ScheduleProfile, ComputesOutsideOfStepsArePassedOver) {
  const auto actions = actions_of(PipelineSchedule::gpipe(2, 2));
  Trace trace;
  trace.add(step_of(1, actions, 0, 50));
  trace.add({{0, "forward of stage 0, micro-batch 9", 1, 2},
             {1, "forward of stage 1, micro-batch 9", 90, 92}});
  EXPECT_EQ(
      shown(trace.written()),
      text_of("measured in step 1 of \"model\" on ranks 0 1: 2 stages, 2 micro-batches", actions));
}

TEST(ScheduleProfile, ATrainerIsChosenWhereSeveralHavePipelines) {
  const auto one = actions_of(PipelineSchedule::gpipe(2, 2), 1);
  const auto other = actions_of(PipelineSchedule::gpipe(2, 3), 2);
  Trace trace;
  trace.add(step_of(1, one, 0, 5, "the \"one\"")).add(step_of(1, other, 0, 50, "other"));
  trace.add({{0, step_name(1, "without a pipeline"), 100, 101}});
  const auto file = trace.written();
  EXPECT_EQ(shown(file, {"--trainer", "the \"one\""}),
            text_of("measured in step 1 of \"the \"one\"\" on ranks 0 1: 2 stages, 2 micro-batches",
                    one));
  EXPECT_EQ(
      shown(file, {"--trainer", "other"}),
      text_of("measured in step 1 of \"other\" on ranks 0 1: 2 stages, 3 micro-batches", other));
  const auto names = file + " has pipelines of \"other\", \"the \"one\"\"";
  EXPECT_EQ(refusal(file, {}, 2), "tutti schedule: " + names + ": --trainer says which is meant");
  EXPECT_EQ(refusal(file, {"--trainer", "without a pipeline"}, 2),
            "tutti schedule: --trainer without a pipeline: " + names);
}

TEST(ScheduleProfile, TrainersOfSeveralThreadsAreToldApart) {
  const Trace trace;
  const auto thread = [](int tid, const char* name, int us) {
    const auto event = [&](const std::string& text, int start, int duration) {
      return ",{\"dur\":" + std::to_string(duration) +
             ",\"tdur\":9,\"ts\":" + std::to_string(start) + ",\"tid\":" + std::to_string(tid) +
             ",\"pid\":0,\"name\":\"" + text +
             "\",\"cat\":\"no\",\"args\":{\"name\":\"no\",\"x\":[1,{\"ts\":7}]},\"ph\":\"X\"}\n";
    };
    return event("forward of stage 0, micro-batch 0", 10, us) +
           event("backward of stage 0, micro-batch 0", 110, us) +
           event(std::string("step 1 of \\\"") + name + "\\\"", 5, 300);
  };
  const auto events =
      R"({"ph":"B","name":"no number in it"})" + thread(1, "a", 40) + thread(2, "b", 80);
  // Both forms that the format has.
  for (const auto& text :
       {"[" + events + "]", "{\"other\":[[{}],2],\"traceEvents\":[" + events +
                                "],\"more\":{\"traceEvents\":[{\"ph\":\"X\"}]}}"}) {
    for (const double ms : {0.04, 0.08}) {
      const std::string name = ms < 0.05 ? "a" : "b";
      EXPECT_EQ(
          shown(trace.raw(text), {"--trainer", name}),
          text_of("measured in step 1 of \"" + name + "\" on rank 0: 1 stages, 1 micro-batches",
                  {{0, {StageWork::forward, 0, 0}, 0, ms},
                   {0, {StageWork::backward, 0, 0}, 0.1, 0.1 + ms}}));
    }
  }
}

TEST(ScheduleProfile, TimesMayOverlapByTheirRounding) {
  const Trace trace;
  EXPECT_THAT(shown(trace.raw(raw_step(R"("ts":5000000000.001,"dur":2.001)",
                                       R"("ts":5000000002.001,"dur":3.0)"))),
              HasSubstr("all workers: 0.005 ms, bubble 0.0 %"));
  EXPECT_THAT(refusal(trace.raw(raw_step(R"("ts":10.0,"dur":2)", R"("ts":11.0,"dur":3.0)")), {}, 1),
              EndsWith("raw.json: step 1 of \"m\": a timeline of a pipeline: on worker 0 the "
                       "backward of stage 0, micro-batch 0 overlaps the forward of stage 0, "
                       "micro-batch 0"));
}

TEST(ScheduleProfile, AnythingElseInATimelineTakesNoMemory) {
#ifdef TUTTI_SANITIZED
  GTEST_SKIP() << "a sanitizer needs more address space than this test leaves";
#endif
  const Trace trace;
  const auto file = trace.raw("{\"traceEvents\":[");
  {
    std::ofstream to(file, std::ios::app);
    const std::string noise =
        R"({"ph":"X","name":"wait","pid":1,"tid":7,"ts":5000000000.125,"dur":25.5},)"
        "\n";
    for (int i = 0; i < 1 << 20; ++i) to << noise;
    to << raw_step(R"("ts":10,"dur":2)", R"("ts":15,"dur":3.0)").substr(16);
  }
  EXPECT_GT(std::filesystem::file_size(file), std::size_t{72} << 20);
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit lower{.rlim_cur = rlim_t{64} << 20, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_AS, &lower);
  const auto run = schedule(file);
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("all workers: 0.008 ms"));
}

}  // namespace
}  // namespace tutti
