// What DataParallel refuses, and what it finds changed behind its back: each error names the
// parameter.

#include <cmath>
#include <sstream>

#include "torch/training.h"

namespace tutti::test::refusals_cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// promise: data_parallel.h#deadline, errors#deadlines
TEST(Refusals, WhatIsRefusedNamesTheParameter) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    auto model = mlp();
    DataParallel parallel(group, *model);
    EXPECT_THAT(text_of([&] { DataParallel twice(group, *model); }),
                HasSubstr("\"0.weight\" of \"model\" is wrapped"));
    const auto p = torch::zeros({3}).requires_grad_();
    EXPECT_THAT(text_of([&] {
                  DataParallel q(group, {{"p", p}, {"q", p}});
                }),
                HasSubstr("\"q\" is listed twice"));
    const auto complex = torch::zeros({3}, torch::kComplexHalf).requires_grad_();
    EXPECT_THAT(text_of([&] { DataParallel q(group, {{"c", complex}}); }), HasSubstr("\"c\""));
    const auto computed = p * 2;
    EXPECT_THAT(text_of([&] {
                  DataParallel q(group, {{"r", computed}});
                }),
                HasSubstr("not a leaf"));
    EXPECT_THAT(text_of([&] {
                  DataParallel q(group, std::vector<std::pair<std::string, torch::Tensor>>{});
                }),
                HasSubstr("no parameter"));
    EXPECT_THAT(text_of([&] {
                  DataParallel q(group, {{"p", p}}, {.fusion = 0});
                }),
                HasSubstr("fusion"));
    EXPECT_THAT(text_of([&] {
                  DataParallel q(group, {{"p", p}}, {.deadline = std::chrono::milliseconds(0)});
                }),
                HasSubstr("deadline"));
    EXPECT_THAT(text_of([&] { parallel.next_weight(-1); }), HasSubstr("-1"));

    // No module says that its gradient is sparse.
    auto table = torch::nn::Embedding(9, 4);
    DataParallel with_table(group, *table);
    EXPECT_THAT(
        text_of<InvalidArgument>([&] {
          torch::embedding(table->weight, torch::tensor({1, 2}), -1, false, /*sparse=*/true)
              .sum()
              .backward();
        }),
        HasSubstr("\"weight\" of \"model\" has a sparse gradient, but it is not row-sparse"));

    const Batch batch(4, 1);
    EXPECT_THAT(
        text_of([&] { batch.loss(model, 0, 4).backward({}, c10::nullopt, /*create_graph=*/true); }),
        HasSubstr("create_graph"));
    model->zero_grad();
    batch.loss(model, 0, 4).backward();
  });
}

// promise: error.h#Diverged
TEST(Refusals, AValueThatACodecCannotSendHasDivergedAndTheNextStepWorks) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model, {.compression = {.codec = half_codec()}});
    const Batch batch(4, 1);
    const auto step = [&](double factor) {
      model->zero_grad();
      (batch.loss(model, 2 * job.rank(), 2 * job.rank() + 2) * factor).backward();
    };
    step(1);
    EXPECT_THAT(text_of<Diverged>([&] { step(job.rank() == 1 ? NAN : 1); }),
                HasSubstr("in logical worker 1 is not finite"));
    step(1);
    EXPECT_EQ(parallel.report().step, 3);
  });
}

TEST(Refusals, MovedAndAddedParametersAreFound) {
  on_workers(1, [](const Job& job) {
    const Group group(job);
    const Batch batch(4, 1);
    {
      auto model = mlp();
      DataParallel parallel(group, *model);
      model->to(torch::kFloat64);
      EXPECT_THAT(text_of([&] { model->forward(batch.x.to(torch::kFloat64)).sum().backward(); }),
                  HasSubstr("was moved"));
    }
    {
      auto model = mlp();
      DataParallel parallel(group, *model, {.desync_check_every = 1});
      auto& layer = *model[0]->as<torch::nn::Linear>();
      layer.register_parameter("extra", torch::zeros({2}));
      EXPECT_THAT(text_of([&] { batch.loss(model, 0, 4).backward(); }),
                  HasSubstr("\"0.extra\" of \"model\" was added"));
    }
  });
}

TEST(Refusals, MovedBuffersAreFound) {
  on_workers(1, [](const Job& job) {
    torch::nn::Sequential model(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
    here(*model);
    DataParallel parallel(job, *model);
    model[1]->as<torch::nn::BatchNorm1d>()->running_mean.set_data(torch::zeros({4}));
    EXPECT_THAT(text_of([&] { model->forward(Batch(4, 1).x).sum().backward(); }),
                HasSubstr("buffer \"1.running_mean\" of \"model\" was moved"));
  });
}

TEST(Refusals, AnEmptyParameterThatWasZeroedIsNotWritten) {
  on_workers(1, [](const Job& job) {
    const auto empty = torch::zeros({0, 4}).requires_grad_();
    const auto full = torch::zeros({3}).requires_grad_();
    DataParallel parallel(Group(job), {{"empty", empty}, {"full", full}});
    (empty.sum() + full.sum()).backward();
    for (const auto& p : {empty, full}) p.mutable_grad() = p.grad().detach().zero_();
    full.sum().backward();
    EXPECT_THAT(parallel.touched(), ElementsAre("full"));
  });
}

TEST(Refusals, LoadingIntoAWrappedModelIsFound) {
  on_workers(1, [](const Job& job) {
    std::stringstream file;
    auto model = mlp();
    torch::save(model, file);
    {
      DataParallel parallel(job, *model);
      torch::load(model, file);
      const auto text = text_of([&] { Batch(4, 1).loss(model, 0, 4).backward(); });
      EXPECT_THAT(text, HasSubstr("make a new DataParallel"));
    }
    DataParallel fresh(job, *model);
    model->zero_grad();
    Batch(4, 1).loss(model, 0, 4).backward();
    EXPECT_EQ(fresh.report().parameters_touched, 4);
  });
}

// promise: data_parallel.h#DataParallel, error.h#Mismatch
TEST(Refusals, DifferentModelsGiveEveryWorkerTheSameShortDiff) {
  const auto outcome = outcome_on_workers(3, [](const Job& job) {
    torch::nn::Sequential model(torch::nn::Linear(6, job.rank() == 1 ? 9 : 8));
    DataParallel parallel(job, *model);
  });
  EXPECT_THAT(outcome.ranks[0].text,
              HasSubstr("rank 1, unlike rank 0: parameter \"0.weight\" is float32 [9, 6]"));
  EXPECT_EQ(outcome.ranks[0].text, outcome.ranks[1].text);
  EXPECT_EQ(outcome.ranks[0].text, outcome.ranks[2].text);
}

// Each of these trains wrongly or crashes where it is not noticed.
// promise: data_parallel.h#DataParallel
TEST(Refusals, AnotherNameOrderTypeOrCountIsADifferenceToo) {
  using Named = std::vector<std::pair<std::string, torch::Tensor>>;
  const auto refused = [](const std::function<Named(bool)>& make) {
    const auto outcome = outcome_on_workers(
        2, [&](const Job& job) { DataParallel parallel(Group(job), make(job.rank() == 1)); });
    EXPECT_EQ(outcome.ranks[0].text, outcome.ranks[1].text);
    return outcome.ranks[0].text;
  };
  const auto p = [](std::int64_t n, torch::ScalarType type = torch::kFloat32) {
    return torch::zeros({n}, type).requires_grad_();
  };
  EXPECT_THAT(refused([&](bool other) {
                return Named{{"a", p(3, other ? torch::kFloat64 : torch::kFloat32)}};
              }),
              HasSubstr("\"a\" is float64 [3]"));
  EXPECT_THAT(refused([&](bool other) {
                return other ? Named{{"b", p(3)}, {"a", p(3)}} : Named{{"a", p(3)}, {"b", p(3)}};
              }),
              HasSubstr("rank 1, unlike rank 0"));
  EXPECT_THAT(refused([&](bool other) {
                return other ? Named{{"a", p(3)}} : Named{{"a", p(3)}, {"b", p(3)}};
              }),
              HasSubstr("\"b\""));
}

// promise: error.h#Mismatch
TEST(Refusals, ParametersChangedOnOneWorkerAreNamedByTheDigest) {
  const auto outcome = outcome_on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model, {.desync_check_every = 2});
    for (std::uint64_t step = 1; step <= 2; ++step) {
      model->zero_grad();
      Batch(4, step).loss(model, 0, 4).backward();
      if (job.rank() == 1) model[2]->as<torch::nn::Linear>()->bias.detach().add_(1e-6);
    }
  });
  for (const auto& rank : outcome.ranks) {
    EXPECT_THAT(rank.text, HasSubstr("step 2"));
    EXPECT_THAT(rank.text, HasSubstr("\"2.bias\" of rank 1 differs"));
  }
}

}  // namespace
}  // namespace tutti::test::refusals_cases
