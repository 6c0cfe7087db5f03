// ParameterRoles of models: layouts, dtypes, tied and frozen weights, buffers, two nets.

#include "torch/training.h"

namespace tutti::test::models_cases {
namespace {

using ::testing::ElementsAre;

TEST(Models, TiedWeightsFireOnceAfterAllUses) {
  on_workers(3, [](const Job& job) {
    auto shared = torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false));
    torch::nn::Sequential model(shared, shared);
    DataParallel parallel(job, *model);
    shared->weight.detach().copy_(torch::eye(6));
    const auto x = torch::ones({1, 6}) * (job.rank() + 1);
    model->forward(x).sum().backward();
    // d/dW of sum(W W x) at W = I is 1 x^T + 1 x^T.
    EXPECT_TRUE(torch::allclose(shared->weight.grad(), torch::ones({6, 6}) * 2 * (1 + 2 + 3) / 3));
    EXPECT_EQ(parallel.report().parameters_touched, 1);
  });
}

TEST(Models, CellUnrolledInTimeAndSharedByTwoNets) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto cell = torch::nn::LSTMCell(6, 5);
    torch::nn::Sequential heads(torch::nn::Linear(5, 2), torch::nn::Linear(5, 1));
    torch::nn::ModuleDict all;
    all->update({{"cell", cell.ptr()}, {"heads", heads.ptr()}});
    DataParallel parallel(job, *all);
    const Batch batch(4, 1);
    const auto run = [&](std::int64_t begin, std::int64_t end) {
      torch::Tensor h = torch::zeros({end - begin, 5});
      torch::Tensor c = torch::zeros({end - begin, 5});
      for (int t = 0; t < 4; ++t) {
        std::tie(h, c) = cell->forward(batch.x.slice(0, begin, end), std::make_tuple(h, c));
      }
      return heads[0]->as<torch::nn::Linear>()->forward(h).square().mean() +
             heads[1]->as<torch::nn::Linear>()->forward(c).square().mean();
    };
    run(job.rank() * 2, job.rank() * 2 + 2).backward();
    std::vector<torch::Tensor> reduced;
    for (const auto& p : all->parameters()) reduced.push_back(p.grad().clone());
    const auto joined = torch::autograd::grad({run(0, 4)}, all->parameters());
    for (std::size_t p = 0; p < joined.size(); ++p) {
      EXPECT_TRUE(torch::allclose(reduced[p], joined[p], 1e-5, 1e-6)) << p;
    }
  });
}

TEST(Models, TwoNetsTrainedInTurns) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    torch::nn::Sequential generator(torch::nn::Linear(6, 8), torch::nn::ReLU(),
                                    torch::nn::Linear(8, 3));
    torch::nn::Sequential critic(torch::nn::Linear(3, 8), torch::nn::ReLU(),
                                 torch::nn::Linear(8, 1));
    DataParallel parallel_generator(job, *generator, {.name = "generator"});
    DataParallel parallel_critic(job, *critic, {.name = "critic"});
    torch::optim::Adam optimizer_generator(generator->parameters());
    torch::optim::Adam optimizer_critic(critic->parameters());
    const auto freeze = [&](bool frozen) {
      for (auto& p : critic->parameters()) p.requires_grad_(!frozen);
    };
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const Batch batch(4, step * 2 + static_cast<std::uint64_t>(job.rank()));
      optimizer_critic.zero_grad();
      (critic->forward(generator->forward(batch.x).detach()) - critic->forward(batch.y))
          .mean()
          .backward();
      EXPECT_EQ(parallel_critic.report().step, static_cast<std::int64_t>(step));
      optimizer_critic.step();
      freeze(true);
      optimizer_generator.zero_grad();
      (-critic->forward(generator->forward(batch.x)).mean()).backward();
      EXPECT_EQ(parallel_generator.report().step, static_cast<std::int64_t>(step));
      optimizer_generator.step();
      freeze(false);
    }
    expect_equal_everywhere(parallel_generator.group(), *generator);
    expect_equal_everywhere(parallel_critic.group(), *critic);
  });
}

TEST(Models, FrozenAndUnfrozenBetweenSteps) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    auto& first = *model[0]->as<torch::nn::Linear>();
    first.weight.requires_grad_(false);  // frozen before it is wrapped
    DataParallel parallel(job, *model);
    const auto step = [&](std::uint64_t seed) {
      model->zero_grad();
      const Batch batch(4, seed);
      batch.loss(model, job.rank() * 2, job.rank() * 2 + 2).backward();
      const auto reduced =
          first.weight.grad().defined() ? first.weight.grad().clone() : torch::Tensor();
      if (!reduced.defined()) return;
      const auto joined = torch::autograd::grad({batch.loss(model, 0, 4)}, {first.weight});
      EXPECT_TRUE(torch::allclose(reduced, joined[0], 1e-5, 1e-6));
    };
    step(1);
    EXPECT_EQ(parallel.report().parameters_touched, 3);
    first.weight.requires_grad_(true);
    step(2);
    EXPECT_EQ(parallel.report().parameters_touched, 4);
    step(3);
    first.weight.requires_grad_(false);
    step(4);
    EXPECT_EQ(parallel.report().parameters_touched, 3);
    first.weight.requires_grad_(true);
    step(5);
    EXPECT_EQ(parallel.report().parameters_touched, 4);
  });
}

// promise: data_parallel.h#per_replica
TEST(Models, ExcludedParametersStayLocal) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(job.rank());
    auto model = mlp();
    const auto mine = model[2]->as<torch::nn::Linear>()->weight.clone();
    DataParallel parallel(
        job, *model, {.per_replica = [](const std::string& name) { return name == "2.weight"; }});
    EXPECT_TRUE(torch::equal(model[2]->as<torch::nn::Linear>()->weight, mine));
    const Batch batch(4, static_cast<std::uint64_t>(job.rank()));
    batch.loss(model, 0, 4).backward();
    const auto local = model[2]->as<torch::nn::Linear>()->weight.grad().clone();
    EXPECT_THAT(parallel.touched(), ElementsAre("0.weight", "0.bias", "2.bias"));
    const auto again = torch::autograd::grad({batch.loss(model, 0, 4)},
                                             {model[2]->as<torch::nn::Linear>()->weight});
    EXPECT_TRUE(torch::equal(local, again[0]));
  });
}

// promise: data_parallel.h#per_replica
TEST(Models, WhatIsExcludedMayDifferInShape) {
  on_workers(2, [](const Job& job) {
    torch::nn::Sequential model(torch::nn::Linear(6, 4), torch::nn::Linear(4, 2 + job.rank()));
    const auto last_layer = [](const std::string& name) { return name.starts_with("1."); };
    DataParallel parallel(job, *model, {.per_replica = last_layer});
    model->forward(Batch(4, 1).x).sum().backward();
    EXPECT_THAT(parallel.touched(), ElementsAre("0.weight", "0.bias"));
    EXPECT_EQ(model->parameters()[3].grad().numel(), 2 + job.rank());
  });
}

// promise: data_parallel.h#DataParallel
TEST(Models, MixedTypesChannelsLastScalarsAndEmpty) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    const auto wide =
        torch::randn({5, 3, 3, 3}).contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
    const auto exact = torch::randn({7}, torch::kFloat64).requires_grad_();
    const auto brain = torch::randn({33}).to(torch::kBFloat16).requires_grad_();
    const auto half = torch::randn({65}).to(torch::kFloat16).requires_grad_();
    const auto scalar = torch::randn({}).requires_grad_();
    const auto empty = torch::randn({0, 4}).requires_grad_();
    DataParallel parallel(Group(job), {{"wide", wide},
                                       {"exact", exact},
                                       {"brain", brain},
                                       {"half", half},
                                       {"scalar", scalar},
                                       {"empty", empty}});
    for (int step = 1; step <= 2; ++step) {
      for (const auto& p : {wide, exact, brain, half, scalar, empty}) p.mutable_grad().reset();
      const double k = job.rank() + step;
      const auto x = torch::arange(45).reshape({1, 3, 3, 5}).to(torch::kFloat32);
      (torch::conv2d(x, wide).sum() * k + (exact * exact).sum() * k + (brain * k).sum() +
       (half * k).sum() + scalar * k + (empty * k).sum())
          .backward();
      const double mean = step + 0.5;
      EXPECT_EQ(wide.grad().strides(), wide.strides());
      EXPECT_TRUE(torch::allclose(
          wide.grad(), torch::autograd::grad({torch::conv2d(x, wide).sum()}, {wide})[0] * mean));
      EXPECT_TRUE(torch::allclose(exact.grad(), exact * 2 * mean));
      EXPECT_EQ(exact.grad().scalar_type(), torch::kFloat64);
      EXPECT_TRUE(torch::equal(brain.grad(), torch::full({33}, mean, torch::kBFloat16)));
      EXPECT_TRUE(torch::equal(half.grad(), torch::full({65}, mean, torch::kFloat16)));
      EXPECT_EQ(scalar.grad().item<double>(), mean);
      EXPECT_TRUE(empty.grad().defined());
    }
  });
}

// Rounded once, after the sum: 1 + 2^-9 + 2^-9 in bfloat16 would stay 1 if every addition rounded.
// promise: data_parallel.h#weight, numerics#16-bit-floats
TEST(Models, SixteenBitGradientsAreAddedInFloat32) {
  on_workers(3, [](const Job& job) {
    const auto p = torch::zeros({100}, torch::kBFloat16).requires_grad_();
    DataParallel parallel(Group(job), {{"p", p}}, {.divide = Divide::not_at_all});
    (p * (job.rank() == 0 ? 1.0 : 1.0 / 256)).sum().backward();
    EXPECT_TRUE(torch::equal(p.grad(), torch::full({100}, 1.0 + 1.0 / 128, torch::kBFloat16)));
  });
}

// The sum of three gradients of 30 000 is beyond float16; the mean is not.
// promise: numerics#16-bit-floats
TEST(Models, AMeanOfHalvesDoesNotOverflowOnTheWay) {
  on_workers(3, [](const Job& job) {
    const auto p = torch::zeros({65}, torch::kFloat16).requires_grad_();
    DataParallel parallel(Group(job), {{"p", p}});
    (p * 30000).sum().backward();
    EXPECT_TRUE(torch::equal(p.grad(), torch::full({65}, 30000.0, torch::kFloat16)));
  });
}

// promise: data_parallel.h#weight
TEST(Models, DivisorsOtherThanTheWeight) {
  on_workers(3, [](const Job& job) {
    const auto a = torch::zeros({5}).requires_grad_();
    const auto b = torch::zeros({5}).requires_grad_();
    DataParallel parallel(Group(job), {{"a", a}, {"b", b}}, {.divide = Divide::by_contributors});
    auto loss = a.sum() * 6;
    if (job.rank() == 2) loss = loss + b.sum() * 8;
    loss.backward();
    EXPECT_TRUE(torch::equal(a.grad(), torch::full({5}, 6.0)));
    EXPECT_TRUE(torch::equal(b.grad(), torch::full({5}, 8.0)));
  });
}

// promise: data_parallel.h#Buffers, data_parallel.h#sync_buffers
TEST(Models, BuffersOfRankZeroHoldAfterEachStepOrOnRequest) {
  for (const auto policy : {Buffers::every_step, Buffers::on_request}) {
    on_workers(2, [&](const Job& job) {
      torch::manual_seed(job.rank());
      torch::nn::Sequential model(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4));
      here(*model);
      DataParallel parallel(job, *model, {.buffers = policy, .desync_check_every = 2});
      const auto& norm = *model[1]->as<torch::nn::BatchNorm1d>();
      for (std::uint64_t step = 1; step <= 4; ++step) {
        model->zero_grad();
        const auto loss =
            model->forward(Batch(8, step * 10 + static_cast<std::uint64_t>(job.rank())).x)
                .square()
                .sum();
        const auto version = norm.running_mean._version();
        loss.backward();
        // Graphs that saved the old value get to know that it was replaced.
        EXPECT_EQ(norm.running_mean._version() > version,
                  policy == Buffers::every_step && job.rank() != 0);
        auto mean = norm.running_mean.clone();
        broadcast(parallel.group(), mean, 0);
        EXPECT_EQ(torch::equal(mean, norm.running_mean),
                  policy == Buffers::every_step || job.rank() == 0);
      }
      parallel.sync_buffers();
      auto mean = norm.running_mean.clone();
      broadcast(parallel.group(), mean, 0);
      EXPECT_TRUE(torch::equal(mean, norm.running_mean));
      EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 4);
    });
  }
}

TEST(Models, EvaluationOnOneRankAloneDoesNotWait) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model);
    const Batch batch(4, 1);
    if (job.rank() == 0) {
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(std::isfinite(batch.loss(model, 0, 4).item<double>()));
    }
    // Forwards that never get a backward, and derivatives taken by hand, are no business of ours.
    for (int i = 0; i < job.rank() + 1; ++i) (void)batch.loss(model, 0, 4);
    (void)torch::autograd::grad({batch.loss(model, 0, 4)}, model->parameters());
    batch.loss(model, 0, 4).backward();
    EXPECT_EQ(parallel.report().step, 1);
  });
}

}  // namespace
}  // namespace tutti::test::models_cases
