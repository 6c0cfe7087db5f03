// Evaluation as a program meets it whose model is on the stack and whose data are torch::data's.

#include "torch/training.h"

namespace tutti::test::evaluation_of_data_cases {
namespace {

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return second->forward(torch::dropout(first->forward(x), 0.5, is_training()));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 9));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(9, 3));
};

TEST(EvaluationOfData, TheModelMayBeOnTheStack) {
  const auto inputs = torch::randn({23, 6}, at::make_generator<at::CPUGeneratorImpl>(5));
  std::set<std::string> results;
  for (const int workers : {1, 2, 3}) {
    results.insert(text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(2);
      Net model;
      model.second->eval();  // stays so
      Trainer trainer(job, model, Adam{}, {.shards = 2, .seed = 3});
      const auto metrics = trainer.evaluate(23, 5, [&](const auto& samples, auto& metrics) {
        EXPECT_FALSE(model.is_training());
        EXPECT_FALSE(model.first->is_training());
        const auto value = model.forward(inputs.index_select(0, torch::tensor(samples)));
        metrics.sum("value", value.sum().template item<double>());
      });
      EXPECT_TRUE(model.is_training());
      EXPECT_TRUE(model.first->is_training());
      EXPECT_FALSE(model.second->is_training());
      return std::to_string(metrics["value"]);
    }));
  }
  EXPECT_EQ(results.size(), 1U);
}

}  // namespace
}  // namespace tutti::test::evaluation_of_data_cases
