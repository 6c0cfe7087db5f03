#include "tutti/pipeline_schedule.h"
#include "support/text_of.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "run/pipeline/samples.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto F = StageWork::forward;
constexpr auto B = StageWork::backward;
constexpr auto I = StageWork::backward_input;
constexpr auto W = StageWork::backward_weight;
using Actions = std::vector<StageAction>;

/// "F0 F1 B0 …", with the stage behind a dot where the worker has several.
std::string letters(const PipelineSchedule& schedule, int worker) {
  std::string text;
  for (const auto& action : schedule.actions(worker)) {
    text += text.empty() ? "" : " ";
    text += "FBIW"[static_cast<int>(action.work)];
    text += std::to_string(action.micro_batch);
    if (schedule.stages() > schedule.workers()) text += "." + std::to_string(action.stage);
  }
  return text;
}

TEST(StageAction, ItsTextNamesWorkStageAndMicroBatch) {
  EXPECT_EQ(tutti::text_of({F, 2, 5}), "forward of stage 2, micro-batch 5");
  EXPECT_EQ(tutti::text_of({B, 0, 10}), "backward of stage 0, micro-batch 10");
  EXPECT_EQ(tutti::text_of({I, 63, 0}), "backward (input) of stage 63, micro-batch 0");
  EXPECT_EQ(tutti::text_of({W, 1, 2147483647}),
            "backward (weights) of stage 1, micro-batch 2147483647");
}

// promise: pipeline_schedule.h#gpipe
TEST(PipelineSchedule, GpipeRunsAllForwardsFirst) {
  const auto schedule = PipelineSchedule::gpipe(2, 3);
  EXPECT_EQ(letters(schedule, 0), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(letters(schedule, 1), "F0 F1 F2 B0 B1 B2");
}

// promise: pipeline_schedule.h#one_f_one_b
TEST(PipelineSchedule, OneFOneBTurnsAfterTheForwardsAhead) {
  const auto schedule = PipelineSchedule::one_f_one_b(3, 4);
  EXPECT_EQ(letters(schedule, 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(letters(schedule, 1), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(letters(schedule, 2), "F0 B0 F1 B1 F2 B2 F3 B3");
}

// promise: pipeline_schedule.h#one_f_one_b
TEST(PipelineSchedule, FewerMicroBatchesThanStagesWarmUpLess) {
  const auto schedule = PipelineSchedule::one_f_one_b(4, 2);
  EXPECT_EQ(letters(schedule, 0), "F0 F1 B0 B1");
  EXPECT_EQ(letters(schedule, 2), "F0 F1 B0 B1");
  EXPECT_EQ(letters(schedule, 3), "F0 B0 F1 B1");
}

// promise: pipeline_schedule.h#interleaved, pipeline_schedule.h#stages_of
TEST(PipelineSchedule, InterleavedDealsStagesInTurnAndWorksThroughThemInRounds) {
  const auto schedule = PipelineSchedule::interleaved(2, 2, 4);
  EXPECT_EQ(schedule.workers(), 2);
  EXPECT_THAT(schedule.stages_of(0), ElementsAre(0, 2));
  EXPECT_THAT(schedule.stages_of(1), ElementsAre(1, 3));
  // Narayanan et al. 2021, figure 4: the last worker is one round ahead.
  EXPECT_EQ(letters(schedule, 1),
            "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 B2.1 B3.1");
  EXPECT_EQ(letters(schedule, 0),
            "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0");
}

// promise: pipeline_schedule.h#zb_h1
TEST(PipelineSchedule, ZbH1RunsTheWeightsHalfLaterOnLaterStages) {
  const auto schedule = PipelineSchedule::zb_h1(3, 4);
  EXPECT_EQ(letters(schedule, 0), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  EXPECT_EQ(letters(schedule, 1), "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
  EXPECT_EQ(letters(schedule, 2), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
}

// promise: pipeline_schedule.h#PipelineSchedule
TEST(PipelineSchedule, EachStageHasEachMicroBatchOnceForwardAndOnceBackwardInAscendingOrder) {
  for (const auto& schedule : sample_schedules()) {
    SCOPED_TRACE(schedule.text());
    std::map<int, std::vector<int>> forward, input, weights;  // micro-batches by stage
    std::map<int, std::set<int>> workers;
    for (int w = 0; w < schedule.workers(); ++w) {
      for (const auto& action : schedule.actions(w)) {
        workers[action.stage].insert(w);
        if (action.work == F) forward[action.stage].push_back(action.micro_batch);
        if (makes_input_gradient(action)) input[action.stage].push_back(action.micro_batch);
        if (makes_weight_gradients(action)) weights[action.stage].push_back(action.micro_batch);
      }
    }
    std::vector<int> all;
    for (int m = 0; m < schedule.micro_batches(); ++m) all.push_back(m);
    ASSERT_EQ(workers.size(), static_cast<std::size_t>(schedule.stages()));
    for (int s = 0; s < schedule.stages(); ++s) {
      ASSERT_EQ(forward[s], all) << s;
      ASSERT_EQ(input[s], all) << s;
      ASSERT_EQ(weights[s], all) << s;
      ASSERT_THAT(workers[s], ElementsAre(schedule.worker_of(s)));
    }
  }
}

// promise: pipeline_schedule.h#gpipe, pipeline_schedule.h#interleaved, pipeline_schedule.h#name
TEST(PipelineSchedule, KeepsNoMoreMicroBatchesThanItsKindSays) {
  for (const auto& schedule : sample_schedules()) {
    SCOPED_TRACE(schedule.text());
    for (int w = 0; w < schedule.workers(); ++w) {
      std::map<int, int> unread, held, most_unread,
          most_held;  // until the input's half; the weights'
      int on_worker = 0, most_on_worker = 0;
      for (const auto& action : schedule.actions(w)) {
        const int s = action.stage;
        if (action.work == F) {
          most_on_worker = std::max(most_on_worker, ++on_worker);
          most_unread[s] = std::max(most_unread[s], ++unread[s]);
          most_held[s] = std::max(most_held[s], ++held[s]);
        }
        if (makes_input_gradient(action)) --unread[s];
        if (makes_weight_gradients(action)) {
          --held[s];
          --on_worker;
        }
      }
      if (schedule.name() == "interleaved") {
        const int workers = schedule.workers(), per_worker = schedule.stages() / workers;
        ASSERT_EQ(most_on_worker, std::min(2 * (workers - 1 - w) + (per_worker - 1) * workers + 1,
                                           per_worker * schedule.micro_batches()));
      }
      for (const int s : schedule.stages_of(w)) {
        const int all = schedule.micro_batches();
        const int ahead = std::min(schedule.stages() - s, all);
        if (schedule.name() == "gpipe") {
          ASSERT_EQ(most_held[s], all);
        } else if (schedule.name() == "1f1b") {
          ASSERT_EQ(most_held[s], ahead);
        } else if (schedule.name() == "zb-h1") {
          ASSERT_EQ(most_unread[s], ahead);
          ASSERT_EQ(most_held[s], std::min(schedule.stages(), all));
        }
      }
    }
  }
}

/// The actions, by worker, of 1F1B of two stages and two micro-batches: what is spoiled below.
std::vector<Actions> good() {
  return {{{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {B, 0, 1}},
          {{F, 1, 0}, {B, 1, 0}, {F, 1, 1}, {B, 1, 1}}};
}

std::string refusal_of(const std::vector<Actions>& actions) {
  return text_of([&] { PipelineSchedule::custom("own", 2, 2, actions); });
}

// promise: pipeline_schedule.h#custom, pipeline_schedule.h#name
TEST(PipelineSchedule, OfOnesOwnIsTaken) {
  const auto schedule = PipelineSchedule::custom("own", 2, 2, good());
  EXPECT_EQ(schedule.name(), "own");
  EXPECT_EQ(schedule.worker_of(1), 1);
  EXPECT_EQ(schedule.actions(1), good()[1]);
  // Halves and whole backwards may be mixed, and stages may lie anywhere.
  auto mixed = good();
  mixed[0] = {{F, 0, 0}, {F, 0, 1}, {I, 0, 0}, {W, 0, 0}, {B, 0, 1}};
  EXPECT_EQ(refusal_of(mixed), "nothing was thrown");
  std::swap(mixed[0], mixed[1]);
  EXPECT_EQ(PipelineSchedule::custom("own", 2, 2, mixed).worker_of(0), 1);
  // The order of the inputs' halves is free: that of the parameters' gradients is not.
  auto crossed = good();
  crossed[0] = {{F, 0, 0}, {F, 0, 1}, {I, 0, 1}, {I, 0, 0}, {W, 0, 0}, {W, 0, 1}};
  EXPECT_EQ(refusal_of(crossed), "nothing was thrown");
  // Four stages in a zigzag over two workers.
  std::vector<Actions> zigzag(2);
  for (const int s : {0, 1, 2, 3}) zigzag[s == 0 || s == 3 ? 0 : 1].push_back({F, s, 0});
  for (const int s : {3, 2, 1, 0}) zigzag[s == 0 || s == 3 ? 0 : 1].push_back({B, s, 0});
  EXPECT_THAT(PipelineSchedule::custom("v", 4, 1, zigzag).stages_of(0), ElementsAre(0, 3));
}

// promise: pipeline_schedule.h#PipelineSchedule, pipeline_schedule.h#text_of
TEST(PipelineSchedule, OfOnesOwnThatCannotRunIsRefusedByWorkerStageAndMicroBatch) {
  auto twice = good();
  twice[1].push_back({B, 1, 1});
  EXPECT_EQ(refusal_of(twice),
            "a pipeline schedule own: worker 1 has the backward of stage 1, micro-batch 1 twice");
  auto besides = good();
  besides[1].push_back({W, 1, 1});
  EXPECT_THAT(refusal_of(besides), HasSubstr("worker 1 has the backward (weights) of stage 1, "
                                             "micro-batch 1 besides the backward of stage 1, "
                                             "micro-batch 1"));
  auto both = good();
  both[1] = {{F, 1, 0}, {I, 1, 0}, {B, 1, 0}, {F, 1, 1}, {B, 1, 1}};
  EXPECT_THAT(refusal_of(both), HasSubstr("worker 1 has the backward of stage 1, micro-batch 0 "
                                          "besides the backward (input) of stage 1"));
  auto missing = good();
  missing[0].pop_back();
  EXPECT_THAT(refusal_of(missing),
              HasSubstr("worker 0 lacks the backward of stage 0, micro-batch 1"));
  missing[0].push_back({I, 0, 1});
  EXPECT_THAT(refusal_of(missing),
              HasSubstr("worker 0 lacks the backward (weights) of stage 0, micro-batch 1"));
  auto gap = good();
  gap[0].erase(gap[0].begin());
  EXPECT_THAT(refusal_of(gap), HasSubstr("worker 0 has the backward of stage 0, micro-batch 0 "
                                         "before the forward of stage 0, micro-batch 0"));
  auto halves = good();
  halves[0] = {{F, 0, 0}, {F, 0, 1}, {W, 0, 0}, {I, 0, 0}, {B, 0, 1}};
  EXPECT_THAT(refusal_of(halves),
              HasSubstr("worker 0 has the backward (weights) of stage 0, "
                        "micro-batch 0 before the backward (input) of stage 0"));
  auto no_stage = good();
  no_stage[0].clear();
  EXPECT_THAT(refusal_of(no_stage), HasSubstr("worker 0 has no stage"));
  EXPECT_THAT(text_of([&] { PipelineSchedule::custom("own", 3, 2, good()); }),
              HasSubstr("every worker lacks the forward of stage 2, micro-batch 0"));
  auto elsewhere = good();
  elsewhere[0].push_back(elsewhere[1].back());
  elsewhere[1].pop_back();
  EXPECT_THAT(refusal_of(elsewhere), HasSubstr("worker 1 has the forward of stage 1, micro-batch "
                                               "0, and worker 0 has others of that stage"));
  for (const StageAction& outside :
       Actions{{F, 2, 0}, {F, -1, 0}, {F, 0, 2}, {F, 0, -1}, {static_cast<StageWork>(4), 0, 0}}) {
    auto actions = good();
    actions[0].insert(actions[0].begin(), outside);
    EXPECT_THAT(refusal_of(actions), HasSubstr("of 2 stages and 2 micro-batches"));
  }
}

// promise: pipeline_schedule.h#PipelineSchedule, pipeline_schedule.h#custom
TEST(PipelineSchedule, OfOnesOwnOutOfOrderIsRefused) {
  auto forward = good();
  std::swap(forward[0][0], forward[0][1]);
  EXPECT_THAT(refusal_of(forward), HasSubstr("worker 0 has the forward of stage 0, micro-batch 0 "
                                             "after that of micro-batch 1: they must ascend"));
  auto backward = good();
  std::swap(backward[0][2], backward[0][3]);
  EXPECT_THAT(refusal_of(backward), HasSubstr("worker 0 has the backward of stage 0, micro-batch 0 "
                                              "after that of micro-batch 1: they must ascend"));
  auto weights = good();
  weights[0] = {{F, 0, 0}, {F, 0, 1}, {I, 0, 0}, {B, 0, 1}, {W, 0, 0}};
  EXPECT_THAT(refusal_of(weights), HasSubstr("worker 0 has the backward (weights) of stage 0, "
                                             "micro-batch 0 after that of micro-batch 1"));
}

// promise: pipeline_schedule.h#custom
TEST(PipelineSchedule, OfOnesOwnWhoseWorkersWaitForOneAnotherIsRefused) {
  auto cyclic = good();
  cyclic[0] = {{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}};
  EXPECT_EQ(refusal_of(cyclic), "nothing was thrown");
  cyclic[1] = {{F, 1, 0}, {F, 1, 1}, {B, 1, 0}, {B, 1, 1}};
  EXPECT_EQ(refusal_of(cyclic),
            "a pipeline schedule own: workers wait for one another: worker 0 has the backward of "
            "stage 0, micro-batch 0 next and needs the backward of stage 1, micro-batch 0, of "
            "worker 1; worker 1 has the forward of stage 1, micro-batch 1 next and needs the "
            "forward of stage 0, micro-batch 1, of worker 0");
}

// promise: pipeline_schedule.h#interleaved, pipeline_schedule.h#named
TEST(PipelineSchedule, NumbersThatMakeNoSenseAreRefused) {
  for (const char* kind : {"gpipe", "1f1b", "zb-h1", "interleaved"}) {
    EXPECT_THAT(text_of([&] { PipelineSchedule::named(kind, 0, 0, 4); }),
                HasSubstr(std::string(kind) + ": 0 stages: must be 1 or more"));
    EXPECT_THAT(text_of([&] { PipelineSchedule::named(kind, 0, 4, 0); }),
                HasSubstr(std::string(kind) + ": 0 micro-batches: must be 1 or more"));
    EXPECT_THAT(text_of([&] { PipelineSchedule::named(kind, -1, 4, 4); }),
                HasSubstr("-1 workers: must be 1 or more"));
    EXPECT_THAT(text_of([&] { PipelineSchedule::named(kind, 0, 1 << 16, 1 << 16); }),
                HasSubstr("more than 4194304"));
  }
  EXPECT_THAT(text_of([] { PipelineSchedule::gpipe(0, 1); }), HasSubstr("0 stages"));
  EXPECT_THAT(text_of([] { PipelineSchedule::one_f_one_b(1, -1); }), HasSubstr("-1 micro-batches"));
  EXPECT_THAT(text_of([] { PipelineSchedule::zb_h1(-2, 1); }), HasSubstr("-2 stages"));
  EXPECT_THAT(text_of([] { PipelineSchedule::named("2f2b", 0, 4, 4); }),
              HasSubstr("\"2f2b\": must be gpipe, 1f1b, interleaved or zb-h1"));
  EXPECT_THAT(text_of([] { PipelineSchedule::named("1f1b", 2, 4, 4); }),
              HasSubstr("1f1b: 4 stages on 2 workers: must be one stage for each; interleaved has "
                        "several"));
  EXPECT_THAT(text_of([] { PipelineSchedule::named("interleaved", 3, 4, 3); }),
              HasSubstr("4 stages on 3 workers: must be a multiple of the workers"));
  EXPECT_THAT(text_of([] { PipelineSchedule::named("interleaved", 0, 4, 4); }),
              HasSubstr("1 stages per worker: must be 2 or more; with one stage per worker it is "
                        "1f1b"));
  EXPECT_THAT(text_of([] { PipelineSchedule::interleaved(0, 2, 4); }), HasSubstr("0 workers"));
  EXPECT_THAT(text_of([] { PipelineSchedule::interleaved(1 << 20, 1 << 20, 1 << 20); }),
              HasSubstr("more than 4194304"));
  EXPECT_THAT(text_of([] { PipelineSchedule::interleaved(4, 2, 6); }),
              HasSubstr("6 micro-batches on 4 workers: must be a multiple of the workers; 4 or 8 "
                        "would do"));
  EXPECT_THAT(text_of([] { PipelineSchedule::interleaved(4, 2, 3); }),
              HasSubstr("must be a multiple of the workers; 4 would do"));
  EXPECT_THAT(text_of([] { PipelineSchedule::custom("", 2, 2, good()); }), HasSubstr("a name"));
  EXPECT_THAT(text_of([] { PipelineSchedule::custom("own", 0, 2, {}); }), HasSubstr("0 stages"));
  EXPECT_THAT(text_of([] { PipelineSchedule::custom("own", 1, 1, {}); }), HasSubstr("no worker"));
  const auto schedule = PipelineSchedule::gpipe(2, 2);
  EXPECT_THAT(text_of([&] { schedule.actions(2); }), HasSubstr("there is no worker 2"));
  EXPECT_THAT(text_of([&] { schedule.stages_of(-1); }), HasSubstr("there is no worker -1"));
  EXPECT_THAT(text_of([&] { schedule.worker_of(2); }), HasSubstr("there is no stage 2"));
  EXPECT_THAT(text_of([&] { calls_of(schedule, 2); }), HasSubstr("there is no worker 2"));
}

// promise: pipeline_schedule.h#named, pipeline_schedule.h#text
TEST(PipelineSchedule, EqualTextsMeanEqualSchedules) {
  EXPECT_EQ(PipelineSchedule::interleaved(2, 3, 4).text(),
            "interleaved: 6 stages on 2 workers, 4 micro-batches");
  std::map<std::string, std::vector<Actions>> by_text;
  for (const auto& schedule : sample_schedules()) {
    std::vector<Actions> actions;
    for (int w = 0; w < schedule.workers(); ++w) actions.push_back(schedule.actions(w));
    EXPECT_TRUE(by_text.emplace(schedule.text(), actions).second) << schedule.text();
    // A custom one of the same name is another schedule to those who compare texts.
    const auto own =
        PipelineSchedule::custom("own", schedule.stages(), schedule.micro_batches(), actions);
    const auto found = by_text.emplace(own.text(), actions).first;
    EXPECT_EQ(found->second, actions) << own.text();
    EXPECT_EQ(own.text(),
              PipelineSchedule::custom("own", schedule.stages(), schedule.micro_batches(), actions)
                  .text());
  }
  auto other = good();
  other[0] = {{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}};
  EXPECT_NE(PipelineSchedule::custom("own", 2, 2, good()).text(),
            PipelineSchedule::custom("own", 2, 2, other).text());
}

}  // namespace
}  // namespace tutti::test
