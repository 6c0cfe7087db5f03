// The split classifier in a Trainer's evaluation.

#include <functional>
#include <stdexcept>

#include <fmt/format.h>

#include "torch/classes/trained_classifier.h"

namespace tutti::test::classifier_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trained::answer_of;
using trained::kClasses;
using trained::kShards;
using trained::Net;

constexpr std::int64_t kSamples = 17;

/// A data set's loss, accuracy and predictions, with other batches than a worker has samples of.
std::string evaluation_of(int size, bool trains = false) {
  return text_of_rank_0(size, [&](const Job& job) {
    const Group group(job);
    Net net(group, {.sample_rate = 0.3, .pieces = 8});
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = kShards});
    trainer.step([&](Shard& shard) { return answer_of(shard, net); });
    const auto sha = net.head->sha256();
    const auto all = draw(5, {kSamples, 6}, torch::kFloat32);
    const auto metrics = trainer.evaluate(
        kSamples, 3, [&](const std::vector<std::int64_t>& samples, ShardMetrics& batch) {
          if (trains) net.head->train();
          const auto x = all.index_select(0, torch::tensor(samples));
          const auto y = torch::tensor(samples);
          const auto count = static_cast<double>(samples.size());
          if (samples[0] != 3) {  // one batch has fewer calls than the others
            batch.weighted_mean("loss", net.head->forward(net.trunk->forward(x), y).item<double>(),
                                count);
          }
          const auto classes = net.head->predict(net.trunk->forward(x));
          batch.sum("classes", classes.sum().item<double>());
        });
    EXPECT_EQ(net.head->sha256(), sha);
    EXPECT_TRUE(trainer.step([&](Shard& shard) { return answer_of(shard, net); }).applied);
    std::string text = net.head->sha256();
    for (const auto& metric : metrics) text += fmt::format(" {} {}", metric.name, metric.value);
    return text;
  });
}

TEST(ClassifierInATrainer, IsEvaluatedWithTheSameBytesOnAnyNumberOfWorkers) {
  const auto alone = evaluation_of(1);
  EXPECT_THAT(alone, AllOf(HasSubstr("loss"), HasSubstr("classes")));
  for (const int size : {2, 3, 8}) EXPECT_EQ(evaluation_of(size), alone) << size;
  EXPECT_EQ(evaluation_of(3, true), alone) << "all classes take part in any evaluation";
}

TEST(ClassifierInATrainer, AnEvaluationThatFailsOnOneWorkerEndsOnAll) {
  on_workers(3, [&](const Job& job) {
    const Group group(job);
    Net net(group, {});
    Trainer trainer(group, net, Sgd{.lr = 0.1}, {.shards = 3});
    const auto evaluate = [&](const std::function<void(const torch::Tensor&, std::int64_t)>& with) {
      return text_of<std::exception>([&] {
        trainer.evaluate(15, 2,  // two workers have three batches, the third two
                         [&](const std::vector<std::int64_t>& samples, ShardMetrics& /*batch*/) {
                           with(torch::ones({1, 6}), samples[0]);
                         });
      });
    };
    const auto forward = [&](const torch::Tensor& x, std::int64_t label) {
      net.head->forward(net.trunk->forward(x), torch::tensor({label}));
    };
    EXPECT_THAT(evaluate([&](const torch::Tensor& x, std::int64_t first) {
                  if (first == 2) throw std::runtime_error("no such file");
                  forward(x, first);
                }),
                HasSubstr("no such file"));
    for (const std::int64_t bad : {2, 4}) {
      EXPECT_THAT(evaluate([&](const torch::Tensor& x, std::int64_t first) {
                    forward(x, first == bad ? kClasses : first);
                  }),
                  HasSubstr(job.rank() == 0 ? "label 40 of sample 0" : "rank 0"));
    }
    EXPECT_EQ(evaluate(forward), "");
    EXPECT_TRUE(trainer.step([&](Shard& shard) { return answer_of(shard, net); }).applied);
  });
}

}  // namespace
}  // namespace tutti::test::classifier_cases
