// A gradient that the program keeps stays what it was, as in plain torch: optimizers written by
// hand keep p.grad() as their first momentum.

#include <chrono>
#include <thread>

#include "torch/training.h"

namespace tutti::test::kept_gradients_cases {
namespace {

using torch::Tensor;

Tensor loss_of(torch::nn::Sequential& model, int step) {
  const Batch batch(12, static_cast<std::uint64_t>(step));
  return batch.loss(model, 0, 12);
}

std::vector<Tensor> cloned(const torch::nn::Module& model) {
  std::vector<Tensor> values;
  for (const auto& p : model.parameters()) values.push_back(p.detach().clone());
  return values;
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t p = 0; p < a.size(); ++p) EXPECT_TRUE(torch::equal(a[p], b[p])) << p;
}

using Update = std::function<void(std::vector<Tensor>& parameters)>;

/// All workers have the whole batch, so that on 1 and 2 the mean of gradients is the gradient, bit
/// for bit; on 3 the sum of three rounds.
void expect_plain_torch(const std::function<Update()>& make,
                        const std::function<void(torch::nn::Module&)>& clear) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(5);
      auto model = mlp();
      auto plain = mlp();
      copy_parameters(*model, *plain);
      DataParallel parallel(job, *model);
      const auto train = [&](torch::nn::Sequential& net) {
        const auto update = make();
        auto parameters = net->parameters();
        for (int step = 1; step <= 12; ++step) {
          clear(*net);
          loss_of(net, step).backward();
          const torch::NoGradGuard no_grad;
          update(parameters);
        }
      };
      train(model);
      train(plain);
      if (workers == 3) return expect_close(*model, *plain, 1e-5);
      expect_same(cloned(*model), cloned(*plain));
    });
  }
}

Update momentum_that_is_the_gradient() {
  auto buffers = std::make_shared<std::vector<Tensor>>();
  return [buffers](std::vector<Tensor>& parameters) {
    buffers->resize(parameters.size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      auto& v = (*buffers)[p];
      if (!v.defined()) {
        v = parameters[p].grad();
      } else {
        v.mul_(0.9).add_(parameters[p].grad());
      }
      parameters[p].sub_(v, 0.1);
    }
  };
}

Update adam_with_kept_moments() {
  auto moments = std::make_shared<std::vector<std::pair<Tensor, Tensor>>>();
  return [moments](std::vector<Tensor>& parameters) {
    moments->resize(parameters.size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      auto& [first, second] = (*moments)[p];
      const auto g = parameters[p].grad().detach();  // an alias
      if (!first.defined()) {
        first = g;
        second = g.square();
      } else {
        first.mul_(0.9).add_(g, 0.1);
        second.mul_(0.99).addcmul_(g, g, 0.01);
      }
      parameters[p].sub_(0.01 * first / (second.sqrt() + 1e-3));
    }
  };
}

TEST(KeptGradients, AMomentumThatIsTheFirstGradientIsNotOverwrittenByTheNextStep) {
  expect_plain_torch(momentum_that_is_the_gradient, [](auto& net) { net.zero_grad(); });
}

TEST(KeptGradients, MomentsThatAliasTheGradientTrainAsInPlainTorch) {
  expect_plain_torch(adam_with_kept_moments, [](auto& net) { net.zero_grad(); });
}

TEST(KeptGradients, StayWhatTheyWereInEveryKindOfStep) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(5);
      auto model = mlp();
      DataParallel parallel(job, *model);
      std::vector<Tensor> kept;
      std::vector<Tensor> values;
      const auto keep = [&](bool as_view) {
        for (const auto& p : model->parameters()) {
          kept.push_back(as_view ? p.grad().view(-1) : p.grad());
          values.push_back(kept.back().clone());
        }
      };
      for (int step = 1; step <= 8; ++step) {
        model->zero_grad();
        const Batch batch(12, static_cast<std::uint64_t>(step + 100 * job.rank()));
        switch (step % 4) {
          case 0:
            batch.loss(model, 0, 12).backward();
            break;
          case 1: {
            auto scope = parallel.accumulate();
            scope.micro_batch(5, [&] { return batch.loss(model, 0, 5); });
            scope.micro_batch(7, [&] { return batch.loss(model, 5, 12); });
            scope.finish();
            break;
          }
          case 2:
            // This worker writes nothing; rank 0 does, into everybody's memory.
            if (job.rank() == 0) {
              batch.loss(model, 0, 12).backward();
            } else {
              parallel.synchronize(0);
            }
            break;
          default:
            for (auto& p : model->parameters()) p.mutable_grad() = torch::randn_like(p);
            parallel.synchronize();
        }
        expect_same(kept, values);
        keep(step % 2 == 0);
      }
      // And what is kept is the program's: nobody else sees what it writes there.
      const auto last = model->parameters()[0].grad().clone();
      for (std::size_t i = 0; i + model->parameters().size() < kept.size(); ++i) kept[i].add_(1);
      EXPECT_TRUE(torch::equal(model->parameters()[0].grad(), last));
    });
  }
}

// The leaf's own gradient was written over it.
TEST(KeptGradients, OneThatAClosureOfAScopeTakesStaysWhatItWas) {
  enum class Gives { backward, by_hand, nothing };
  for (const int workers : {1, 2, 3}) {
    for (const auto gives : {Gives::backward, Gives::by_hand, Gives::nothing}) {
      if (workers == 1 && gives == Gives::nothing) continue;
      on_workers(workers, [&](const Job& job) {
        torch::manual_seed(5);
        auto model = mlp();
        DataParallel parallel(job, *model);
        loss_of(model, 1).backward();
        std::vector<Tensor> kept;
        std::vector<Tensor> values;
        auto scope = parallel.accumulate();
        scope.micro_batch(1, [&]() -> Tensor {
          for (const auto& p : model->parameters()) {
            kept.push_back(p.grad());
            values.push_back(p.grad().clone());
          }
          model->zero_grad();
          if (job.rank() < workers - 1 || gives == Gives::backward) return loss_of(model, 2);
          if (gives == Gives::by_hand) {
            for (auto& p : model->parameters()) p.mutable_grad() = torch::ones_like(p);
          }
          return {};
        });
        scope.finish();
        expect_same(kept, values);
        EXPECT_FALSE(torch::equal(model->parameters()[0].grad(), kept[0]));
      });
    }
  }
}

TEST(KeptGradients, ThatWereNotClearedAreStillAnErrorAndThoseZeroedInPlaceAreNot) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(5);
    auto model = mlp();
    DataParallel parallel(job, *model);
    loss_of(model, 1).backward();
    const auto kept = model->parameters()[0].grad();
    const auto values = kept.clone();
    EXPECT_NE(text_of<InvalidArgument>([&] { loss_of(model, 2).backward(); }).find("still holds"),
              std::string::npos);
    EXPECT_TRUE(torch::equal(kept, values));
    model->zero_grad();
    loss_of(model, 2).backward();
    // As in torch, which then adds to the memory that was zeroed.
    const auto alias = model->parameters()[0].grad();
    model->zero_grad(/*set_to_none=*/false);
    EXPECT_TRUE(torch::equal(alias, torch::zeros_like(alias)));
    // Rank 0 has long written its own part into its memory when that of rank 1 comes.
    if (job.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    loss_of(model, 3 + job.rank()).backward();
    EXPECT_TRUE(torch::equal(alias, model->parameters()[0].grad())) << "the sum, not its own part";
    EXPECT_GT(model->parameters()[0].grad().abs().max().item<double>(), 0);
  });
}

/// Plain torch accumulates into whatever memory param.grad has.
TEST(KeptGradients, OnesThatTheProgramGaveOtherMemoryHaveTheirSumsAgain) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      auto model = mlp();
      DataParallel parallel(job, *model);
      loss_of(model, 1).backward();
      for (int step = 2; step <= 4; ++step) {
        if (step == 2) {
          for (auto& p : model->parameters()) {
            p.mutable_grad().set_data(torch::zeros_like(p.grad()));
          }
        }
        model->zero_grad(step != 2);
        loss_of(model, step).backward();
        auto alone = mlp();
        copy_parameters(*model, *alone);
        loss_of(alone, step).backward();
        for (std::size_t p = 0; p < alone->parameters().size(); ++p) {
          EXPECT_TRUE(torch::allclose(model->parameters()[p].grad(), alone->parameters()[p].grad(),
                                      1e-5, 1e-6))
              << step << " " << p;
        }
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test::kept_gradients_cases
