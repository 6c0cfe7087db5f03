// A pipeline gives the bytes of the Trainer without one, whatever its stages, schedule, and number.

#include "torch/pipeline/pipeline_nets.h"

namespace tutti::test::pipeline_exact {
namespace {

constexpr int kSteps = 4;

TrainerOptions options() {
  return {.shards = 8, .seed = 3, .clip = {.norm = 0.5}, .loss_scale = dynamic_loss_scale()};
}

/// What there is to compare: parameters, buffers, optimizer state, and what steps gave.
std::string state_of(const StagedNet& net, Trainer& trainer, const std::string& results) {
  std::string buffers;
  for (const auto& item : net.named_buffers()) {
    std::ostringstream text;
    text << item.key() << " " << item.value().to(torch::kFloat64).sum().item<double>() << "\n";
    buffers += text.str();
  }
  return parameters_sha256(net) + "\n" + trainer.state_sha256() + "\n" + buffers + results;
}

std::string result_text(const StepResult& result) {
  std::ostringstream text;
  text.precision(17);
  text << result.step << (result.applied ? " applied " : " dropped ") << result.loss << " "
       << result.weight << " " << result.shards << " " << result.gradient_norm.value_or(-1) << " "
       << result.metrics["right"] << "\n";
  return text.str();
}

std::string without_pipeline(int size) {
  return text_of_rank_0(size, [&](const Job& job) {
    StagedNet net;
    auto layers = net.layers();
    Trainer trainer(job, net, Adam{.lr = 0.01}, options());
    std::string results;
    for (int step = 0; step < kSteps; ++step) {
      results += result_text(trainer.step([&](Shard& shard) {
        const auto [words, next] = words_of(step, shard.index());
        if (step == 1 && shard.index() == 5) return shard.nothing();
        TensorList values = {words};
        for (auto& layer : layers) values = layer(values);
        return loss_of(shard, values[0], next);
      }));
    }
    return state_of(net, trainer, results);
  });
}

std::string with_pipeline(int size, const Pipeline& shape) {
  return text_of_rank_0(size, [&](const Job& job) {
    StagedNet net;
    auto all = options();
    all.pipeline = shape;
    all.pipeline->layers = net.layers();
    Trainer trainer(job, net, Adam{.lr = 0.01}, all);
    std::string results;
    for (int step = 0; step < kSteps; ++step) {
      results += result_text(trainer.step(
          [&](Shard& shard) -> TensorList {
            if (step == 1 && shard.index() == 5) return {};
            return {words_of(step, shard.index()).first};
          },
          [&](Shard& shard, const TensorList& outputs) {
            return loss_of(shard, outputs[0], words_of(step, shard.index()).second);
          }));
    }
    return state_of(net, trainer, results);
  });
}

TEST(PipelineExact, AllSchedulesStagesAndWidthsHaveTheBytesOfTheUnsplitRun) {
  const auto expected = without_pipeline(1);
  EXPECT_EQ(without_pipeline(2), expected);
  for (const int width : {1, 2}) {
    for (const char* const kind : {"gpipe", "1f1b", "zb-h1"}) {
      for (const int stages : {1, 2, 3, 4}) {
        const auto got = with_pipeline(width * stages, {.stages = stages, .schedule = kind});
        EXPECT_EQ(got, expected) << kind << ", " << stages << " stages, width " << width;
      }
    }
    const auto got =
        with_pipeline(2 * width, {.stages = 4, .schedule = "interleaved", .workers = 2});
    EXPECT_EQ(got, expected) << "interleaved, width " << width;
  }
}

}  // namespace
}  // namespace tutti::test::pipeline_exact
