#include "tutti/pipeline_timeline.h"
#include "support/text_of.h"

#include <gmock/gmock.h>

#include <fmt/format.h>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "run/pipeline/samples.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

PipelineTimeline simulate_equal(const PipelineSchedule& schedule, const StageCosts& costs = {}) {
  return simulate(schedule, PipelineCosts::equal(schedule.stages(), costs));
}

double share(int part, int rest) { return part / static_cast<double>(part + rest); }

// promise: pipeline_timeline.h#StageCosts, pipeline_timeline.h#transfer_ms
TEST(PipelineTimeline, EachActionBeginsAsSoonAsItsWorkerAndWhatItNeedsAreThere) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> draw(0.1, 3);
  for (const auto& schedule : sample_schedules()) {
    SCOPED_TRACE(schedule.text());
    PipelineCosts costs{.transfer_ms = draw(random)};
    for (int s = 0; s < schedule.stages(); ++s)
      costs.stages.push_back({draw(random), draw(random), draw(random)});
    const auto timeline = simulate(schedule, costs);
    std::map<std::tuple<char, int, int>, double> ends;
    for (const auto& [worker, action, start, end] : timeline.actions()) {
      if (action.work == StageWork::forward) ends[{'F', action.stage, action.micro_batch}] = end;
      if (makes_input_gradient(action)) ends[{'I', action.stage, action.micro_batch}] = end;
    }
    int worker = -1;
    double free = 0;
    for (const auto& timed : timeline.actions()) {
      const auto [work, s, m] = timed.action;
      if (timed.worker != worker) free = 0;
      worker = timed.worker;
      double ready = free;
      const auto wait_for = [&](char what, int stage) {
        const bool travels = schedule.worker_of(stage) != worker;
        ready = std::max(ready, ends.at({what, stage, m}) + (travels ? costs.transfer_ms : 0));
      };
      if (work == StageWork::forward && s > 0) wait_for('F', s - 1);
      if (work != StageWork::forward) wait_for('F', s);
      if (makes_input_gradient(timed.action) && s + 1 < schedule.stages()) wait_for('I', s + 1);
      if (work == StageWork::backward_weight) wait_for('I', s);
      const auto& cost = costs.stages[static_cast<std::size_t>(s)];
      const double took = work == StageWork::forward          ? cost.forward_ms
                          : work == StageWork::backward_input ? cost.backward_input_ms
                          : work == StageWork::backward_weight
                              ? cost.backward_weight_ms
                              : cost.backward_input_ms + cost.backward_weight_ms;
      ASSERT_NEAR(timed.start_ms, ready, 1e-9);
      ASSERT_NEAR(timed.end_ms - timed.start_ms, took, 1e-9);
      free = timed.end_ms;
    }
    ASSERT_EQ(timeline.actions().size(),
              static_cast<std::size_t>(schedule.stages() * schedule.micro_batches() *
                                       (schedule.name() == "zb-h1" ? 3 : 2)));
  }
}

// promise: pipeline_schedule.h#gpipe, pipeline_timeline.h#PipelineTimeline
TEST(PipelineTimeline, HasTheBubbleOfTheLiterature) {
  for (const auto& schedule : sample_schedules()) {
    SCOPED_TRACE(schedule.text());
    const int stages = schedule.stages(), workers = schedule.workers();
    const int micro_batches = schedule.micro_batches();
    if (schedule.name() == "zb-h1") {
      // Qi et al. 2023, table 2: (S − 1)(F + I − W) of V(F + I + W) besides, with F = I = W.
      if (micro_batches >= stages) {
        ASSERT_NEAR(simulate_equal(schedule).bubble(), share(stages - 1, 3 * micro_batches), 1e-12);
      }
    } else {
      // Huang et al. 2019; Narayanan et al. 2021, section 2.2, with C stages per worker.
      const StageCosts costs{
          .forward_ms = 0.7, .backward_input_ms = 0.9, .backward_weight_ms = 0.4};
      const int ideal = stages / workers * micro_batches;
      ASSERT_NEAR(simulate_equal(schedule, costs).bubble(), share(workers - 1, ideal), 1e-12);
    }
  }
}

// promise: pipeline_schedule.h#zb_h1
TEST(PipelineTimeline, ZbH1LeavesLessThanHalfOfTheBubbleOf1F1B) {
  const auto one = simulate_equal(PipelineSchedule::one_f_one_b(4, 8));
  const auto zero = simulate_equal(PipelineSchedule::zb_h1(4, 8));
  EXPECT_LE(zero.bubble(), one.bubble() / 2);
  EXPECT_DOUBLE_EQ(one.makespan_ms(), 33);
  EXPECT_DOUBLE_EQ(zero.makespan_ms(), 27);
  for (const auto& schedule : sample_schedules()) {
    if (schedule.name() != "zb-h1") continue;
    const auto like = PipelineSchedule::one_f_one_b(schedule.stages(), schedule.micro_batches());
    EXPECT_LE(simulate_equal(schedule).makespan_ms(), simulate_equal(like).makespan_ms())
        << schedule.text();
  }
}

TEST(PipelineTimeline, TransfersThatTakeTimeCost1F1BMoreThanGpipe) {
  const auto makespan = [](const char* kind) {
    return simulate(PipelineSchedule::named(kind, 0, 4, 8), PipelineCosts::equal(4, {}, 0.5))
        .makespan_ms();
  };
  EXPECT_DOUBLE_EQ(makespan("1f1b"), 41);
  EXPECT_DOUBLE_EQ(makespan("gpipe"), 36);
  EXPECT_DOUBLE_EQ(makespan("zb-h1"), 33);
}

// promise: pipeline_timeline.h#peak_held, pipeline_timeline.h#peak_in_flight
TEST(PipelineTimeline, KnowsHowManyMicroBatchesAStageKeeps) {
  for (const auto& schedule : sample_schedules()) {
    SCOPED_TRACE(schedule.text());
    const auto timeline = simulate_equal(schedule);
    for (int s = 0; s < schedule.stages(); ++s) {
      const auto& use = timeline.stages()[static_cast<std::size_t>(s)];
      const int all = schedule.micro_batches();
      const int ahead = std::min(schedule.stages() - s, all);
      ASSERT_EQ(use.worker, schedule.worker_of(s));
      if (schedule.name() == "gpipe") {
        ASSERT_EQ(use.peak_held, all);
      } else if (schedule.name() == "1f1b") {
        ASSERT_EQ(use.peak_held, ahead);
      } else if (schedule.name() == "zb-h1") {
        ASSERT_EQ(use.peak_in_flight, ahead);
        ASSERT_EQ(use.peak_held, std::min(schedule.stages(), all));
      }
    }
  }
}

// promise: pipeline_timeline.h#activation_bytes, pipeline_timeline.h#weight_half_bytes
TEST(PipelineTimeline, AddsUpTheBytesOfAllStagesOfAWorker) {
  // Worker 0 keeps 2 of stage 0 (of 100 bytes) and one of stage 2 (of 7) when the backward begins.
  using enum StageWork;
  const auto schedule = PipelineSchedule::custom("own", 3, 2,
                                                 {{{forward, 0, 0},
                                                   {forward, 0, 1},
                                                   {forward, 2, 0},
                                                   {backward, 2, 0},
                                                   {forward, 2, 1},
                                                   {backward, 2, 1},
                                                   {backward, 0, 0},
                                                   {backward, 0, 1}},
                                                  {{forward, 1, 0},
                                                   {forward, 1, 1},
                                                   {backward_input, 1, 0},
                                                   {backward_input, 1, 1},
                                                   {backward_weight, 1, 0},
                                                   {backward_weight, 1, 1}}});
  PipelineCosts costs{.stages = {{.activation_bytes = 100, .weight_half_bytes = 1000},
                                 {.activation_bytes = 10, .weight_half_bytes = 40},
                                 {.activation_bytes = 7, .weight_half_bytes = 1000}}};
  auto timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.workers()[0].peak_bytes, 207);
  // Stage 1: two activations of 10; 10 and a rest of 40; two rests.
  EXPECT_EQ(timeline.workers()[1].peak_bytes, 80);
  EXPECT_EQ(timeline.stages()[1].peak_in_flight, 2);
  EXPECT_EQ(timeline.stages()[1].peak_held, 2);
  costs.stages[1].weight_half_bytes = 4;
  EXPECT_EQ(simulate(schedule, costs).workers()[1].peak_bytes, 20);
  // The peak memory of ZB-H1 is that of 1F1B's first stage.
  const StageCosts equal{.activation_bytes = 50, .weight_half_bytes = 50};
  const auto one = simulate_equal(PipelineSchedule::one_f_one_b(4, 8), equal);
  const auto zero = simulate_equal(PipelineSchedule::zb_h1(4, 8), equal);
  for (const auto& worker : zero.workers())
    EXPECT_EQ(worker.peak_bytes, one.workers()[0].peak_bytes);
  EXPECT_EQ(one.workers()[3].peak_bytes, 50);
}

// promise: pipeline_timeline.h#actions, pipeline_timeline.h#bubble
TEST(PipelineTimeline, OfWhatWasMeasuredIsThatOfItsEvents) {
  using enum StageWork;
  const PipelineTimeline timeline("measured",
                                  {{1, {backward, 1, 0}, 105.5, 108},
                                   {0, {backward, 0, 0}, 108, 110},
                                   {0, {forward, 0, 0}, 100, 102},
                                   {1, {forward, 1, 0}, 103, 105}},
                                  {{.activation_bytes = 3}, {.activation_bytes = 5}});
  EXPECT_EQ(timeline.title(), "measured");
  EXPECT_DOUBLE_EQ(timeline.makespan_ms(), 10);
  EXPECT_DOUBLE_EQ(timeline.workers()[0].busy_ms, 4);
  EXPECT_DOUBLE_EQ(timeline.workers()[0].bubble, 0.6);
  EXPECT_DOUBLE_EQ(timeline.workers()[1].bubble, 0.55);
  EXPECT_DOUBLE_EQ(timeline.bubble(), 0.575);
  EXPECT_EQ(timeline.workers()[1].peak_bytes, 5);
  EXPECT_EQ(timeline.actions()[0].action, (StageAction{forward, 0, 0}));
  EXPECT_DOUBLE_EQ(timeline.actions()[0].start_ms, 0);
  EXPECT_EQ(timeline.actions()[3].action, (StageAction{backward, 1, 0}));
  EXPECT_DOUBLE_EQ(timeline.actions()[3].end_ms, 8);
}

// promise: pipeline_timeline.h#PipelineTimeline
TEST(PipelineTimeline, OfWhatCannotBeIsRefused) {
  using enum StageWork;
  const auto refused = [](const std::vector<TimedAction>& actions,
                          const std::vector<StageCosts>& costs = {}) {
    return text_of([&] { PipelineTimeline("measured", actions, costs); });
  };
  EXPECT_THAT(refused({}), HasSubstr("nothing was computed"));
  EXPECT_THAT(refused({{0, {forward, 0, 3}, 2, 1}}),
              HasSubstr("the forward of stage 0, micro-batch 3 of worker 0 is from 2 to 1 ms"));
  EXPECT_THAT(refused({{0, {forward, 0, 3}, 2, std::nan("")}}), HasSubstr("from 2 to nan ms"));
  EXPECT_THAT(refused({{-1, {forward, 0, 3}, 1, 2}}), HasSubstr("worker -1 with the forward"));
  EXPECT_THAT(refused({{0, {forward, -1, 3}, 1, 2}}), HasSubstr("of stage -1"));
  EXPECT_THAT(refused({{0, {forward, 0, -3}, 1, 2}}), HasSubstr("micro-batch -3"));
  EXPECT_THAT(refused({{1, {forward, 0, 0}, 0, 2}, {1, {forward, 0, 1}, 1.5, 3}}),
              HasSubstr("on worker 1 the forward of stage 0, micro-batch 1 overlaps the forward of "
                        "stage 0, micro-batch 0"));
  EXPECT_EQ(refused({{0, {forward, 0, 0}, 0, 2}, {1, {forward, 1, 1}, 1.5, 3}}),
            "nothing was thrown");
  EXPECT_THAT(refused({{0, {forward, 2, 0}, 0, 2}}, {{}, {}}),
              HasSubstr("costs of 2 stages, of 3"));
}

// promise: pipeline_timeline.h#bubble, pipeline_timeline.h#equal, pipeline_timeline.h#simulate
TEST(PipelineTimeline, CostsThatMakeNoSenseAreRefused) {
  const auto schedule = PipelineSchedule::gpipe(2, 2);
  const auto refused = [&](const PipelineCosts& costs) {
    return text_of([&] { simulate(schedule, costs); });
  };
  EXPECT_THAT(refused(PipelineCosts::equal(3)),
              HasSubstr("of 3 stages, for gpipe: 2 stages on 2 workers, 2 micro-batches"));
  PipelineCosts costs = PipelineCosts::equal(2);
  costs.stages[1].forward_ms = -1;
  EXPECT_THAT(refused(costs), HasSubstr("the forward of stage 1 takes -1 ms"));
  costs.stages[1] = {.backward_input_ms = std::nan("")};
  EXPECT_THAT(refused(costs),
              HasSubstr("the input's half of the backward of stage 1 takes nan ms"));
  costs.stages[1] = {.backward_weight_ms = std::numeric_limits<double>::infinity()};
  EXPECT_THAT(refused(costs), HasSubstr("the weights' half of the backward of stage 1 takes inf"));
  EXPECT_THAT(refused(PipelineCosts::equal(2, {}, -0.5)), HasSubstr("a transfer takes -0.5 ms"));
  EXPECT_THAT(text_of([] { PipelineCosts::equal(0); }), HasSubstr("0 stages"));
  // Nothing that takes time is no error: there is no bubble then.
  const auto none = simulate(schedule, PipelineCosts::equal(2, {0, 0, 0}));
  EXPECT_EQ(none.bubble(), 0);
  EXPECT_EQ(none.stages()[0].peak_held, 2);
  EXPECT_THAT(none.text() + none.picture(), Not(HasSubstr("nan")));
}

// promise: pipeline_timeline.h#text
TEST(PipelineTimeline, IsShownAsRowsOfCharactersAndATable) {
  const auto timeline =
      simulate_equal(PipelineSchedule::one_f_one_b(2, 3), {.activation_bytes = 2'000'000});
  EXPECT_EQ(timeline.text(),
            "1f1b: 2 stages on 2 workers, 3 micro-batches\n"
            "worker 0   |F0 F1 ......B0--- F2 B1--- ...B2--- |\n"
            "worker 1   |...F0 B0--- F1 B1--- F2 B2--- ......|\n"
            "F forward, B backward of the micro-batch; . idle\n"
            "\n"
            "worker    busy, ms    bubble      stages  micro-batches    kept, MB\n"
            "0            9.000    25.0 %           0              2        4.00\n"
            "1            9.000    25.0 %           1              1        2.00\n"
            "all workers: 12.000 ms, bubble 25.0 %\n"
            "micro-batches: that a stage keeps something of, at its peak\n");
  EXPECT_THAT(simulate_equal(PipelineSchedule::zb_h1(2, 2)).text(),
              AllOf(HasSubstr("worker 0   |F0 F1 ...B0 W0 B1 W1 |\n"
                              "worker 1   |...F0 B0 F1 B1 W0 W1 |\n"
                              "F forward, B backward (of the input, where there is a W), W"),
                    HasSubstr("until the input's half: 2 1\n"), Not(HasSubstr("MB"))));
  EXPECT_THAT(
      simulate_equal(PipelineSchedule::interleaved(2, 2, 2)).text(),
      AllOf(HasSubstr("worker 0   |F0a F1a F0b F1b ........B0b---- ....B1b---- B0a---- B1a---- |"),
            HasSubstr("a, b, …: the worker's first, second, … stage"),
            HasSubstr("         0 2            2 2\n")));
}

// promise: pipeline_timeline.h#text
TEST(PipelineTimeline, ALongOneIsNoWiderThanATerminal) {
  const auto timeline = simulate_equal(PipelineSchedule::one_f_one_b(8, 32));
  const auto text = timeline.text();
  const auto column = [&](double ms) { return std::lround(ms * 160 / timeline.makespan_ms()); };
  std::size_t at = 0;
  for (int w = 0; w < 8; ++w) {
    const auto first = text.find('|', at) + 1;
    at = text.find('|', first) + 1;
    const auto row = text.substr(first, at - 1 - first);
    ASSERT_EQ(row.size(), 160U);
    // Labels that do not fit are cut: they reach into nothing else, and idle time stays so.
    std::string expected(160, '.');
    for (const auto& [worker, action, start, end] : timeline.actions()) {
      if (worker != w) continue;
      for (auto c = column(start); c < column(end); ++c)
        expected[static_cast<std::size_t>(c)] = '#';
      EXPECT_EQ(row[static_cast<std::size_t>(column(start))],
                action.work == StageWork::forward ? 'F' : 'B');
    }
    for (std::size_t c = 0; c < row.size(); ++c) EXPECT_EQ(row[c] == '.', expected[c] == '.') << c;
  }
}

int count(const std::string& text, const std::string& words) {
  int times = 0;
  for (auto at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++times;
  return times;
}

// promise: pipeline_timeline.h#picture
TEST(PipelineTimeline, IsShownAsAPicture) {
  const auto svg = simulate_equal(PipelineSchedule::zb_h1(3, 4)).picture();
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_EQ(count(svg, "<g>"), 3 * 3 * 4);
  EXPECT_EQ(count(svg, "</g>"), 3 * 3 * 4);
  EXPECT_THAT(svg, AllOf(HasSubstr("zb-h1: 3 stages on 3 workers, 4 micro-batches: 14 ms, bubble "
                                   "14.3 %"),
                         HasSubstr(">worker 2<"), HasSubstr(">backward, input<"),
                         HasSubstr(">backward, weights<"), Not(HasSubstr(">backward<"))));
  EXPECT_THAT(svg, HasSubstr("<title>backward (weights) of stage 1, micro-batch 3: 13 to 14 ms"));
  const auto plain = simulate_equal(PipelineSchedule::gpipe(3, 4)).picture();
  EXPECT_THAT(plain, AllOf(HasSubstr(">backward<"), Not(HasSubstr(">backward, input<")),
                           Not(HasSubstr("lighter"))));
  EXPECT_THAT(simulate_equal(PipelineSchedule::interleaved(2, 2, 2)).picture(),
              HasSubstr("lighter: later stage of the worker"));
  const PipelineTimeline odd("<a> & b", {{0, {StageWork::forward, 0, 0}, 0, 1}});
  EXPECT_THAT(odd.picture(), AllOf(HasSubstr("&lt;a&gt; &amp; b"), Not(HasSubstr("<a>"))));
}

TEST(PipelineTimeline, APictureHasRoomForItsTitle) {
  const auto width_of = [](const std::string& title) {
    const auto svg = PipelineTimeline(title, {{0, {StageWork::forward, 0, 0}, 0, 1}}).picture();
    return std::stod(svg.substr(svg.find("viewBox=\"0 0 ") + std::string("viewBox=\"0 0 ").size()));
  };
  constexpr double kLetter = 7;  // of 15 points, at least
  EXPECT_EQ(width_of(std::string(10, 'x')), width_of(std::string(50, 'x')));
  EXPECT_GT(width_of(std::string(200, 'x')), 200 * kLetter);
}

}  // namespace
}  // namespace tutti::test
