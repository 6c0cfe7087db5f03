// Gradients that come into being in shared memory: once the trainer knows the backward, without a
// copy; and the same bytes whatever the program does with them.

#include <map>
#include <set>

#include "torch/training.h"

namespace tutti::test::zero_copy_cases {
namespace {

/// Two parameters of one size, and small ones.
torch::nn::Sequential net() {
  return torch::nn::Sequential(torch::nn::Linear(160, 160), torch::nn::Tanh(),
                               torch::nn::Linear(160, 160));
}

torch::Tensor loss_of(torch::nn::Sequential& model, const Shard& shard) {
  const auto x = torch::randn({160, 160}, at::make_generator<at::CPUGeneratorImpl>(shard.seed()));
  return model->forward(x).square().mean();  // activations have the size of the weights
}

/// The hash of the state after each of ten steps. Before the n-th, `prepare(n, model)` is called.
std::vector<std::string> train(const Job& job, std::int64_t shards,
                               const std::function<void(int, torch::nn::Sequential&)>& prepare = {},
                               std::vector<int>* born = nullptr) {
  torch::manual_seed(1);
  auto model = net();
  Trainer trainer(job, *model, Adam{.lr = 1e-2}, {.shards = shards, .clip = {.norm = 0.1}});
  std::vector<std::string> ends;
  for (int step = 1; step <= 10; ++step) {
    if (prepare) prepare(step, model);
    const auto result = trainer.step([&](Shard& shard) {
      return shard.loss(loss_of(model, shard), 1 + static_cast<double>(shard.index()) / 3);
    });
    if (born != nullptr) born->push_back(result.report.zero_copy_gradients);
    ends.push_back(trainer.state_sha256());
  }
  return ends;
}

TEST(ZeroCopyGradients, AFewStepsLetThemHappenInPlace) {
  on_workers(2, [](const Job& job) {
    std::vector<int> born;
    train(job, 2, {}, &born);
    EXPECT_EQ(born, (std::vector<int>{0, 0, 2, 2, 2, 2, 2, 2, 2, 2}));
  });
}

/// Hooks that keep every gradient copy what they keep; nothing is born in place then.
std::vector<std::string> without_births(const Job& job, std::int64_t shards) {
  std::vector<torch::Tensor> kept;
  std::vector<int> born;
  const auto ends = train(
      job, shards,
      [&](int step, torch::nn::Sequential& model) {
        if (step > 1) return;
        for (auto& parameter : model->parameters()) {
          parameter.register_hook([&](const torch::Tensor& gradient) { kept.push_back(gradient); });
        }
      },
      &born);
  EXPECT_EQ(born, std::vector<int>(10, 0));
  return ends;
}

TEST(ZeroCopyGradients, TheyShowInNoByte) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      for (const std::int64_t shards : {3, 8}) {
        EXPECT_EQ(train(job, shards), without_births(job, shards)) << shards;
      }
    });
  }
}

/// A gradient or an activation's gradient that the program keeps, from some step on, stays what it
/// was, and so does the run.
TEST(ZeroCopyGradients, WhatTheProgramKeepsIsItsOwn) {
  on_workers(2, [](const Job& job) {
    const auto expected = train(job, 2);
    for (const int from : {3, 4, 6}) {
      std::vector<std::pair<torch::Tensor, torch::Tensor>> kept;  // and copies made at once
      std::vector<int> born;
      const auto ends = train(
          job, 2,
          [&](int step, torch::nn::Sequential& model) {
            if (step != from) return;
            for (auto& parameter : model->parameters()) {
              parameter.register_hook([&](const torch::Tensor& gradient) {
                if (kept.size() < 5) kept.emplace_back(gradient, gradient.clone());
              });
            }
          },
          &born);
      EXPECT_EQ(ends, expected);
      EXPECT_EQ(kept.size(), 5U);
      for (const auto& [gradient, copy] : kept) EXPECT_TRUE(torch::equal(gradient, copy));
      EXPECT_EQ(born.back(), 2);
    }
  });
}

/// Allocations of a parameter's size come in another order: other tensors get its place, and keep
/// it for as long as they live.
TEST(ZeroCopyGradients, AnotherGraphIsNoHarm) {
  on_workers(2, [](const Job& job) {
    const auto run = [&](bool keep) {
      torch::manual_seed(1);
      auto model = net();
      Trainer trainer(job, *model, Adam{.lr = 1e-2}, {.shards = 2, .clip = {.norm = 0.1}});
      std::vector<std::pair<torch::Tensor, torch::Tensor>> kept;
      std::string ends;
      for (int step = 1; step <= 12; ++step) {
        trainer.step([&](Shard& shard) {
          auto loss = loss_of(model, shard);
          if (step % 4 == 0) {  // more activations in front of the usual ones
            auto x = torch::randn({160, 160}).requires_grad_();
            auto hidden = model->forward(x).sin();
            if (keep) {
              hidden.register_hook([&](const torch::Tensor& gradient) {
                kept.emplace_back(gradient, gradient.clone());
              });
              x.register_hook([&](const torch::Tensor& gradient) {
                kept.emplace_back(gradient, gradient.clone());
              });
            }
            loss = loss + hidden.exp().mean();
          }
          return shard.loss(loss);
        });
        ends += trainer.state_sha256();
      }
      for (const auto& [gradient, copy] : kept) EXPECT_TRUE(torch::equal(gradient, copy));
      EXPECT_EQ(kept.size(), keep ? 6U : 0U);
      return ends;
    };
    EXPECT_EQ(run(true), run(false));
  });
}

/// A 16-bit parameter has the bytes of another one, and a node of another type.
TEST(ZeroCopyGradients, SixteenBitsAreConvertedAsBefore) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = torch::nn::Sequential(torch::nn::Linear(160, 160), torch::nn::Linear(160, 320));
    model[1]->to(torch::kBFloat16);
    Trainer trainer(job, *model, Adam{.lr = 1e-2}, {.shards = 2});
    for (int step = 1; step <= 5; ++step) {
      const auto result = trainer.step([&](Shard& shard) {
        const auto hidden = model[0]->as<torch::nn::Linear>()->forward(torch::ones({160, 160}));
        const auto scores = model[1]->as<torch::nn::Linear>()->forward(hidden.to(torch::kBFloat16));
        return shard.loss(scores.to(torch::kFloat32).square().mean());
      });
      EXPECT_TRUE(result.applied) << result.dropped_because;
      EXPECT_EQ(result.report.zero_copy_gradients, step <= 2 ? 0 : 1);
    }
  });
}

/// Gradients that the program kept, handed in later, by several shards and with weights: they are
/// copied, wherever they lie.
TEST(ZeroCopyGradients, WhatWasKeptAndIsHandedInLaterStaysItsOwn) {
  std::set<std::string> ends;
  for (const int workers : {1, 2}) {
    ends.insert(text_of_rank_0(workers, [](const Job& job) {
      torch::manual_seed(1);
      auto model = net();
      Trainer trainer(job, *model, Adam{.lr = 1e-2}, {.shards = 2});
      std::map<std::size_t, torch::Tensor> kept;
      const auto parameters = model->parameters();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        parameters[p].register_hook([&kept, p](const torch::Tensor& gradient) {
          kept[p] = gradient;
          return gradient;  // and what a hook gives is somebody's too
        });
      }
      for (int step = 1; step <= 6; ++step) {
        trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard)); });
        std::vector<torch::Tensor> late, copies;
        for (const auto& [p, gradient] : kept) {
          gradient.fill_(static_cast<double>(p + 1));  // alike on all workers
          late.push_back(gradient);
          copies.push_back(gradient.clone());
        }
        trainer.step([&](Shard& shard) { return shard.gradients(late, 2); });
        for (std::size_t p = 0; p < late.size(); ++p) EXPECT_TRUE(torch::equal(late[p], copies[p]));
      }
      return trainer.state_sha256();
    }));
  }
  EXPECT_EQ(ends.size(), 1U);
}

TEST(ZeroCopyGradients, AHistoryOfGradientsTakesNoMoreThanItsOwnMemory) {
  on_workers(2, [](const Job& job) {
    auto model = net();
    Trainer trainer(job, *model, Adam{.lr = 1e-2}, {.shards = 2, .audit_every = 0});
    std::vector<std::pair<torch::Tensor, torch::Tensor>> history;
    int step = 0;
    for (auto& parameter : model->parameters()) {
      parameter.register_hook([&](const torch::Tensor& gradient) {
        if (step % 4 == 0) history.emplace_back(gradient, gradient.clone());
      });
    }
    for (step = 1; step <= 300; ++step) {
      trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard)); });
    }
    EXPECT_EQ(history.size(), 4U * 75);
    for (const auto& [gradient, copy] : history) EXPECT_TRUE(torch::equal(gradient, copy));
  });
}

/// Libraries below torch take memory without its contexts, in another order from batch to batch.
TEST(ZeroCopyGradients, ConvolutionsOfOtherSizesAreNoHarm) {
  std::set<std::string> ends;
  for (const int workers : {1, 2}) {
    ends.insert(text_of_rank_0(workers, [](const Job& job) {
      torch::manual_seed(1);
      torch::nn::Sequential model(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 160, 1)), torch::nn::ReLU(),
          torch::nn::Conv2d(torch::nn::Conv2dOptions(160, 160, 1)), torch::nn::ReLU(),
          torch::nn::Conv2d(torch::nn::Conv2dOptions(160, 32, 3)));
      Trainer trainer(job, *model, Adam{.lr = 1e-3}, {.shards = 2});
      for (int step = 1; step <= 16; ++step) {
        trainer.step([&](Shard& shard) {
          const auto side = step % 4 == 0 ? 5 : 8;
          const auto x = torch::randn({step % 3 == 0 ? 1 : 4, 3, side, side});
          auto loss = model->forward(x).square().mean();
          if (step % 5 == 0) loss = loss + torch::zeros({160, 160}).requires_grad_().sin().mean();
          return shard.loss(loss);
        });
      }
      return trainer.state_sha256();
    }));
  }
  EXPECT_EQ(ends.size(), 1U);
}

TEST(ZeroCopyGradients, ABackwardMayRunAnotherOne) {
  on_workers(2, [](const Job& job) {
    const auto end = [&](bool runs_another) {
      torch::manual_seed(1);
      auto other = net();
      torch::manual_seed(2);
      auto model = net();
      Trainer trainer(job, *model, Adam{.lr = 1e-2}, {.shards = 2});
      if (runs_another) {
        model->parameters()[2].register_hook([&other](const torch::Tensor&) {
          const torch::AutoGradMode grad_mode(true);
          other->forward(torch::ones({160, 160})).square().mean().backward();
        });
      }
      for (int step = 1; step <= 6; ++step) {
        trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard)); });
      }
      EXPECT_EQ(other->parameters()[0].grad().defined(), runs_another);
      return trainer.state_sha256();
    };
    EXPECT_EQ(end(true), end(false));
  });
}

TEST(ZeroCopyGradients, AGradientOutlivesItsTrainer) {
  on_workers(1, [](const Job& job) {
    torch::Tensor kept;
    {
      auto model = net();
      Trainer trainer(job, *model, Adam{.lr = 1e-2}, {});
      for (int step = 1; step <= 5; ++step) {
        if (step == 5) {
          model->parameters()[0].register_hook(
              [&](const torch::Tensor& gradient) { kept = gradient; });
        }
        trainer.step([&](Shard& shard) { return shard.loss(loss_of(model, shard)); });
      }
    }
    EXPECT_TRUE(torch::isfinite(kept).all().item<bool>());
    kept.fill_(1);
  });
}

}  // namespace
}  // namespace tutti::test::zero_copy_cases
