// What a Trainer with a pipeline takes of memory.

#include <fstream>

#include "torch/pipeline/chain.h"
#include "torch/recompute/memory_meter.h"

namespace tutti::test::pipeline_cases {
namespace {

using ::testing::HasSubstr;

long shared_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssShmem:")) return std::stol(line.substr(9));
  }
  return -1;
}

TEST(Pipeline, ParametersKeepTheirPlacesAndStepsTakeNoMoreMemory) {
  for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
    on_workers(2, [&](const Job& job) {
      Chain chain;
      Trainer trainer(job, chain, Adam{.lr = 0.1},
                      {.shards = 8, .pipeline = pipeline_of(chain.layers(), 2, kind)});
      step_of(trainer);
      step_of(trainer);
      std::vector<const void*> places;
      for (const auto& parameter : chain.parameters()) places.push_back(parameter.data_ptr());
      const auto taken = shared_kib();
      for (int k = 0; k < 20; ++k) step_of(trainer);
      std::vector<const void*> after;
      for (const auto& parameter : chain.parameters()) after.push_back(parameter.data_ptr());
      EXPECT_EQ(after, places);
      // A wait that lasts, on a busy machine, looks at both workers' pages of the job's board.
      EXPECT_LE(shared_kib(), taken + 16) << kind;
    });
  }
}

/// The most that libtorch's allocator gives this worker in a step of stages that keep 4 MiB of a
/// shard: what each operation is given, and what the sigmoid gives. As much is kept between the
/// halves of a backward: what both products are given, and the gradients that come to them.
std::int64_t peak_of(const Job& job, const char* kind, std::int64_t shards) {
  Chain chain;
  std::vector<PipelineLayer> layers;
  for (const auto& linear : chain.linear) {
    layers.emplace_back([linear](const TensorList& x) -> TensorList {
      return {torch::sigmoid(torch::sin(x[0] * linear->bias[0]) * linear->weight[0][0])};
    });
  }
  Trainer trainer(job, chain, Sgd{}, {.shards = shards, .pipeline = pipeline_of(layers, 4, kind)});
  const auto step = [&] {
    trainer.step([](Shard&) -> TensorList { return {torch::ones({1 << 18})}; },
                 [](Shard& shard, const TensorList& y) { return shard.loss(y[0].mean()); });
  };
  step();
  const MemoryMeter meter;
  step();
  return meter.peak();
}

TEST(Pipeline, AStageKeepsAsMuchAsItsScheduleSays) {
  on_workers(4, [](const Job& job) {
    const auto of_two = peak_of(job, "gpipe", 2);
    const auto kept = peak_of(job, "gpipe", 3) - of_two;
    EXPECT_NEAR(static_cast<double>(kept), 4 << 20, 0.05 * (4 << 20));
    for (const std::string kind : {"gpipe", "1f1b", "zb-h1"}) {
      const auto timeline =
          simulate(PipelineSchedule::named(kind, 4, 4, 8), PipelineCosts::equal(4));
      const auto use = timeline.stages().at(static_cast<std::size_t>(job.rank()));
      const auto planned = of_two + (use.peak_held - 2) * kept;
      const auto measured = peak_of(job, kind.c_str(), 8);
      EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(planned),
                  0.1 * static_cast<double>(planned))
          << kind << " on stage " << job.rank() << ", of which so many are kept: " << use.peak_held;
    }
  });
}

// promise: trainer_options.h#memory_limit
TEST(Pipeline, AModelBeyondTheLimitOfAWorkerTrainsOnTwoAndIsRefusedOnOne) {
  const auto of = [](int size, std::uint64_t limit) {
    return text_of_rank_0(size, [&](const Job& job) {
      Chain chain;
      return text_of<OutOfMemory>([&] {
        Trainer trainer(
            job, chain, Adam{.lr = 0.1},
            {.shards = 4, .pipeline = pipeline_of(chain.layers(), size), .memory_limit = limit});
        EXPECT_TRUE(step_of(trainer).applied);
      });
    });
  };
  EXPECT_EQ(of(2, 4096), "");
  EXPECT_EQ(
      of(1, 4096),
      "parameters and optimizer state of \"model\" are 8 KiB, 8 KiB for each of 1 workers of a "
      "host, and memory_limit is 4 KiB: 2 workers of a host would do");
  EXPECT_THAT(of(2, 1), HasSubstr("workers of a host would do"));
}

}  // namespace
}  // namespace tutti::test::pipeline_cases
