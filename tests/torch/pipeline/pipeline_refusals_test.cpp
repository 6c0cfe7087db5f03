// What a Trainer with a pipeline refuses when it is made, or where a step begins.

#include "torch/pipeline/chain.h"

namespace tutti::test::pipeline_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(int size, const std::function<void(Pipeline&, TrainerOptions&)>& change) {
  return text_of_rank_0(size, [&](const Job& job) {
    Chain chain;
    TrainerOptions options{.shards = 4};
    auto pipeline = pipeline_of(chain.layers(), 2);
    change(pipeline, options);
    options.pipeline = pipeline;
    return text_of([&] { Trainer(job, chain, Sgd{}, options); });
  });
}

// promise: pipeline.h#cuts, pipeline.h#own_schedule, pipeline.h#stages
TEST(PipelineRefusals, WhatMakesNoSenseIsSaidWhenTheTrainerIsMade) {
  const auto with = [](const std::function<void(Pipeline&)>& change, int size = 2) {
    return refusal_of(size, [&](Pipeline& pipeline, TrainerOptions&) { change(pipeline); });
  };
  EXPECT_EQ(with([](Pipeline& p) { p.stages = 5; }),
            "a pipeline of 5 stages and 4 layers: a stage has at least one layer, and there is at "
            "least one stage");
  EXPECT_EQ(with([](Pipeline& p) { p.stages = 0; }),
            "Pipeline::stages is 0: say into how many the layers are cut");
  EXPECT_THAT(with([](Pipeline& p) { p.stages = -1; }), HasSubstr("of -1 stages"));
  EXPECT_THAT(with([](Pipeline& p) { p.layers.clear(); }), HasSubstr("and 0 layers"));
  EXPECT_EQ(with([](Pipeline& p) { p.layers[2] = nullptr; }),
            "layer 2 of the pipeline is an empty function");
  EXPECT_EQ(with([](Pipeline& p) { p.workers = 3; }),
            "3 workers of a pipeline of 2 stages: each has at least one");
  EXPECT_THAT(with([](Pipeline& p) {
                p.cuts = {2, 3};
              }),
              HasSubstr("cuts [2, 3] of 4 layers into 2 stages"));
  EXPECT_THAT(
      with([](Pipeline& p) { p.cuts = {4}; }),
      AllOf(HasSubstr("cuts [4] of 4 layers"), HasSubstr("1 ascending number from 1 to 3")));
  EXPECT_THAT(with([](Pipeline& p) { p.schedule = "interleaved"; }),
              HasSubstr("an interleaved pipeline of 2 stages: say how many workers share them "
                        "(Pipeline::workers)"));
  EXPECT_THAT(with([](Pipeline& p) { p.schedule = "2f2b"; }), HasSubstr("2f2b"));
  EXPECT_EQ(with([](Pipeline&) {}, 3), "3 workers for pipelines of 2: start a multiple of 2");
  EXPECT_THAT(with([](Pipeline& p) {
                p.stages = 4;
                p.workers = 2;
                p.schedule = "interleaved";
              }),
              "");
  // Three shards of a pipeline are no multiple of its two workers.
  EXPECT_THAT(refusal_of(2,
                         [](Pipeline& p, TrainerOptions& options) {
                           options.shards = 3;
                           p.stages = 4;
                           p.workers = 2;
                           p.schedule = "interleaved";
                         }),
              HasSubstr("3 micro-batches on 2 workers: must be a multiple of the workers; 2 or "
                        "4 would do"));
  EXPECT_THAT(
      with([](Pipeline& p) { p.own_schedule = [](int) { return PipelineSchedule::gpipe(2, 7); }; }),
      HasSubstr("where 2 stages on 2 workers have 4 shards"));
}

// promise: trainer_options.h#pipeline, trainer_options.h#speeds
TEST(PipelineRefusals, OptionsThatDoNotGoWithOneAreNamed) {
  const auto with = [](const std::function<void(TrainerOptions&)>& change) {
    return refusal_of(2, [&](Pipeline&, TrainerOptions& options) { change(options); });
  };
  EXPECT_THAT(with([](TrainerOptions& o) { o.compression.codec = half_codec(); }),
              HasSubstr("a codec with a pipeline"));
  EXPECT_THAT(with([](TrainerOptions& o) {
                o.logical_workers = 2;
                o.averaging = local_sgd(2);
              }),
              HasSubstr("averaging with a pipeline"));
  EXPECT_THAT(with([](TrainerOptions& o) {
                o.logical_workers = 2;
                o.per_replica = [](const std::string&) { return true; };
              }),
              HasSubstr("per-replica parameters with a pipeline"));
  EXPECT_THAT(with([](TrainerOptions& o) {
                o.speeds = {1, 2};
              }),
              HasSubstr("2 speeds for 1 pipelines"));
}

// promise: pipeline.h#Pipeline
TEST(PipelineRefusals, PipelinesThatDifferOnWorkersAreAMismatch) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    auto pipeline = pipeline_of(chain.layers(), 2);
    if (job.rank() == 1) pipeline.cuts = {1};
    const auto text =
        text_of([&] { Trainer(job, chain, Sgd{}, {.shards = 4, .pipeline = pipeline}); });
    EXPECT_THAT(text, HasSubstr("pipeline"));
    EXPECT_THAT(text, AllOf(HasSubstr("[0, 2, 4]"), HasSubstr("[0, 1, 4]")));
  });
}

TEST(PipelineRefusals, AStepTakesTheClosuresThatTheTrainerIsMadeFor) {
  on_workers(2, [](const Job& job) {
    Chain chain;
    Trainer plain(Group(job, "plain"), chain, Sgd{}, {.shards = 2, .name = "plain"});
    EXPECT_THAT(text_of([&] { step_of(plain); }),
                HasSubstr("step(inputs, loss) is for a Trainer whose options have a pipeline"));
    Chain other;
    Trainer trainer(Group(job, "staged"), other, Sgd{},
                    {.shards = 2, .name = "staged", .pipeline = pipeline_of(other.layers(), 2)});
    EXPECT_THAT(text_of([&] { trainer.step([](Shard& shard) { return shard.nothing(); }); }),
                HasSubstr("a step takes two closures"));
    EXPECT_TRUE(step_of(trainer).applied);
  });
}

}  // namespace
}  // namespace tutti::test::pipeline_cases
