// DataParallel::mean(): what decides about steps, rates and line searches is the same on all
// workers.

#include <cmath>
#include <limits>

#include "torch/training.h"

namespace tutti::test::parallel_mean_cases {
namespace {

using ::testing::HasSubstr;

torch::nn::Sequential net() {
  torch::manual_seed(3);
  auto model = mlp();
  model->to(torch::kFloat64);
  return model;
}

/// 13 rows: no number of workers deals them evenly.
struct Data {
  torch::Tensor x, y;
  Data() {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
    x = torch::randn({13, 6}, generator, torch::kFloat64);
    y = torch::randn({13, 3}, generator, torch::kFloat64);
  }
  torch::Tensor loss(torch::nn::Sequential& model, std::int64_t begin, std::int64_t end) const {
    return torch::mse_loss(model->forward(x.slice(0, begin, end)), y.slice(0, begin, end));
  }
};

using Train =
    std::function<void(torch::nn::Sequential& model, const std::function<torch::Tensor()>& loss)>;

/// On so many workers, each with its rows, as in one process with all of them.
void expect_as_joined(const Train& train) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      const Data data;
      auto alone = net();
      train(alone, [&] {
        alone->zero_grad();
        const auto loss = data.loss(alone, 0, 13);
        loss.backward();
        return loss.detach();
      });
      auto model = net();
      DataParallel parallel(job, *model);
      const auto [begin, end] = share_of(13, job);
      train(model, [&, begin = begin, end = end] {
        model->zero_grad();
        const auto rows = static_cast<double>(end - begin);
        const auto loss = data.loss(model, begin, end);
        parallel.next_weight(rows);
        loss.backward();
        return parallel.mean(loss, rows);
      });
      expect_equal_everywhere(parallel.group(), *model);
      expect_close(*model, *alone, 1e-12);
      EXPECT_GT((model->parameters()[0] - net()->parameters()[0]).abs().max().item<double>(), 1e-3);
    });
  }
}

TEST(ParallelMean, LbfgsTrainsAsOnOneWorker) {
  expect_as_joined([](torch::nn::Sequential& model, const auto& loss) {
    torch::optim::LBFGS optimizer(model->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4));
    for (int step = 0; step < 6; ++step) optimizer.step(loss);
  });
}

TEST(ParallelMean, ALineSearchTrainsAsOnOneWorker) {
  expect_as_joined([](torch::nn::Sequential& model, const auto& loss) {
    torch::optim::LBFGS optimizer(
        model->parameters(),
        torch::optim::LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe"));
    for (int step = 0; step < 3; ++step) optimizer.step(loss);
  });
}

/// What ReduceLROnPlateau and early stopping do: a rate and an end that depend on the loss.
TEST(ParallelMean, APlateauAndAnEarlyStopAreTheSameOnAllWorkers) {
  expect_as_joined([](torch::nn::Sequential& model, const auto& loss) {
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.9));
    torch::optim::ReduceLROnPlateauScheduler plateau(
        optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, /*patience=*/1, 0.05);
    for (int step = 0; step < 90; ++step) {
      const auto value = loss();
      if (value.template item<double>() < 0.3) break;
      optimizer.step();
      plateau.step(static_cast<float>(value.template item<double>()));
    }
  });
}

TEST(ParallelMean, OfOtherShapesOrInsideAScopeIsRefused) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    {
      auto scope = parallel.accumulate();
      EXPECT_THAT(text_of<InvalidArgument>([&] { parallel.mean(1.0); }),
                  HasSubstr("inside an accumulation scope"));
      scope.finish();
    }
    const auto value = torch::ones({job.rank() + 1, 2 - job.rank()});
    EXPECT_THAT(text_of<Mismatch>([&] { parallel.mean(value); }),
                HasSubstr("mean() of Float [2, 1]"));
  });
}

// promise: data_parallel.h#mean
TEST(ParallelMean, IsWeightedAndTheSameBytesEverywhere) {
  for (const int workers : {1, 2, 3, 5}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(1);
      auto model = mlp();
      const DataParallel parallel(job, *model);
      const auto value = [](int r) { return 1.0 / (3 + r); };
      double sum = 0;
      double weight = 0;
      for (int r = 0; r < workers; ++r) {
        sum += value(r) * (r + 2);
        weight += r + 2;
      }
      const double mine = parallel.mean(value(job.rank()), job.rank() + 2);
      EXPECT_NEAR(mine, sum / weight, 1e-15);
      if (workers == 1) {
        EXPECT_EQ(mine, value(0));
      }
      // Elements, of their own type.
      const auto tensor = torch::full({2, 3}, value(job.rank()), torch::kFloat32).requires_grad_();
      const auto means = parallel.mean(tensor, job.rank() + 2);
      EXPECT_EQ(means.scalar_type(), torch::kFloat32);
      EXPECT_EQ(means.sizes(), tensor.sizes());
      EXPECT_FALSE(means.requires_grad());
      EXPECT_NEAR(means[1][2].item<double>(), sum / weight, 1e-7);
      std::vector<double> all(static_cast<std::size_t>(workers));
      parallel.group().all_gather(
          {&mine, 1, DType::float64},
          {all.data(), static_cast<std::int64_t>(all.size()), DType::float64});
      for (const double other : all) EXPECT_EQ(other, mine);
      // A worker without data.
      const double nan = std::numeric_limits<double>::quiet_NaN();
      const bool has = job.rank() == workers - 1;
      EXPECT_EQ(parallel.mean(has ? 0.5 : nan, has ? 2 : 0), 0.5);
      EXPECT_TRUE(std::isnan(parallel.mean(1, 0)));
      EXPECT_THAT(text_of<InvalidArgument>([&] { parallel.mean(1, -1); }), HasSubstr("not -1"));
      EXPECT_THAT(text_of<InvalidArgument>([&] { parallel.mean(torch::ones({2}, torch::kInt64)); }),
                  HasSubstr("floating-point"));
    });
  }
}

}  // namespace
}  // namespace tutti::test::parallel_mean_cases
