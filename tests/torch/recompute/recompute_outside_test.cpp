// What a segment leaves behind besides its results: tensors of its graph, and tensors that it has
// changed.

#include "torch/training.h"
#include "tutti/recompute.h"

namespace tutti::test::recompute_outside {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kWidth = 5;

torch::Tensor samples_of(std::int64_t step, std::int64_t shard) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * step + shard));
  return torch::randn({4, kWidth}, generator);
}

/// A layer in front, and a block that keeps the tensor of an auxiliary loss.
struct Routed : torch::nn::Module {
  Routed() {
    torch::manual_seed(4);
    front = register_module("front", torch::nn::Linear(kWidth, kWidth));
    block = register_module("block", torch::nn::Linear(kWidth, kWidth));
  }
  /// The block, with the auxiliary loss behind it.
  std::pair<torch::Tensor, torch::Tensor> inner(const torch::Tensor& x) {
    const auto h = torch::tanh(block->forward(x));
    return {h * 2, h.square().mean()};
  }
  torch::nn::Linear front{nullptr};
  torch::nn::Linear block{nullptr};
  torch::Tensor aux;
};

// findings-3: B5
TEST(RecomputeOutside, ATensorOfTheSegmentThatIsNoResultTakesPartInNoBackward) {
  on_workers(1, [](const Job& /*job*/) {
    Routed net;
    const auto loss_of = [&](bool uses) {
      const auto y = recompute(
          {.name = "router"},
          [&net](const torch::Tensor& x) {
            auto [result, aux] = net.inner(x);
            net.aux = aux;
            return result;
          },
          net.front->forward(samples_of(0, 0)));
      return uses ? y.square().mean() + net.aux : y.square().mean();
    };
    const auto refused = AllOf(
        HasSubstr("recompute \"router\": a backward comes to input 0 of the segment by a tensor "
                  "that the segment has not returned"),
        HasSubstr("return it as a result, or keep its detach()"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { loss_of(true).backward(); }), refused);
    EXPECT_THAT(text_of<InvalidArgument>(
                    [&] { torch::autograd::grad({loss_of(true)}, {net.front->weight}); }),
                refused);
    net.zero_grad();
    // One that is kept, and looked at, is nobody's business.
    loss_of(false).backward();
    const auto found = net.front->weight.grad().clone();
    net.zero_grad();
    net.inner(net.front->forward(samples_of(0, 0))).first.square().mean().backward();
    EXPECT_TRUE(found.equal(net.front->weight.grad()));
    EXPECT_GT(net.aux.item<double>(), 0);
  });
}

/// Segments that the input's gradient does not leave are right with a tensor that they keep.
TEST(RecomputeOutside, ATensorOfTheSegmentThatLeadsToParametersAloneIsOfTheSameGraph) {
  on_workers(1, [](const Job& /*job*/) {
    Routed net;
    const auto loss_of = [&](bool again) {
      const auto segment = [&net](const torch::Tensor& x) {
        auto [result, aux] = net.inner(x);
        net.aux = aux;
        return result;
      };
      const auto x = samples_of(0, 0);
      const auto y = again ? recompute(segment, x) : segment(x);
      return y.square().mean() + net.aux;
    };
    const auto gradient_of = [&](bool again) {
      net.zero_grad();
      loss_of(again).backward();
      return net.block->weight.grad().clone();
    };
    EXPECT_TRUE(gradient_of(true).allclose(gradient_of(false)));
  });
}

enum class Aux : std::uint8_t { plain, returned, kept };

std::string with_auxiliary_loss(int size, Aux how) {
  return text_of_rank_0(size, [&](const Job& job) {
    Routed net;
    Trainer trainer(job, net, Sgd{.lr = 0.1}, {.shards = 5, .seed = 1});
    std::string text;
    for (int step = 0; step < 2; ++step) {
      const auto closure = [&](Shard& shard) {
        const auto x = net.front->forward(samples_of(step, shard.index()));
        torch::Tensor y;
        torch::Tensor aux;
        if (how == Aux::plain) {
          std::tie(y, aux) = net.inner(x);
        } else if (how == Aux::returned) {
          std::tie(y, aux) = recompute([&net](const torch::Tensor& z) { return net.inner(z); }, x);
        } else {
          y = recompute(
              [&net](const torch::Tensor& z) {
                auto [result, own] = net.inner(z);
                net.aux = own;
                return result;
              },
              x);
          aux = net.aux;
        }
        return shard.loss(y.square().mean() + aux);
      };
      text += text_of<InvalidArgument>([&] { trainer.step(closure); });
    }
    return text + parameters_sha256(net);
  });
}

// findings-3: B5
TEST(RecomputeOutside, AnAuxiliaryLossIsAResultOrRefusedOnAnyNumberOfWorkers) {
  const auto plain = with_auxiliary_loss(1, Aux::plain);
  for (const int size : {1, 2, 3}) {
    EXPECT_EQ(with_auxiliary_loss(size, Aux::returned), plain) << size;
    EXPECT_THAT(with_auxiliary_loss(size, Aux::kept),
                HasSubstr("that the segment has not returned"))
        << size;
  }
}

/// Layers that change what outlives them: statistics, a counter, a mean of the program's own.
struct Counted : torch::nn::Module {
  Counted() {
    torch::manual_seed(4);
    front = register_module("front", torch::nn::Linear(kWidth, kWidth));
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    fixed = register_module(
        "fixed", torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(kWidth).affine(false)));
    instances = register_module(
        "instances", torch::nn::InstanceNorm1d(
                         torch::nn::InstanceNormOptions(2).track_running_stats(true).affine(true)));
    mean = register_buffer("mean", torch::zeros({2, kWidth}));
    count = register_buffer("count", torch::zeros({}, torch::kLong));
  }
  torch::Tensor inner(const torch::Tensor& x) {
    auto y = norm->forward(x) + fixed->forward(x.detach());
    y = (y * 1).relu_();
    y = instances->forward(y.view({2, 2, kWidth})).view({4, kWidth}) + y;
    {
      const torch::NoGradGuard no_grad;
      mean[1].mul_(0.9).add_(y.mean(0), 0.1);
      count += 1;
    }
    return torch::dropout(y, 0.3, true);
  }
  torch::nn::Linear front{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::BatchNorm1d fixed{nullptr};
  torch::nn::InstanceNorm1d instances{nullptr};
  torch::Tensor mean;
  torch::Tensor count;
};

torch::Tensor run(Counted& net, const torch::Tensor& x, bool again, bool nested) {
  const auto y = net.front->forward(x);
  if (!again) return net.inner(y);
  const auto segment = [&net](const torch::Tensor& z) { return net.inner(z); };
  if (!nested) return recompute(segment, y);
  return recompute([segment](const torch::Tensor& z) { return recompute(segment, z * 1); }, y);
}

// findings-3: B12
TEST(RecomputeOutside, WhatACapturedModuleChangesIsChangedOnce) {
  on_workers(1, [](const Job& /*job*/) {
    const auto buffers_of = [](bool again, bool nested) {
      Counted net;
      for (int step = 0; step < 3; ++step) {
        run(net, samples_of(step, 0), again, nested).square().sum().backward();
      }
      std::vector<torch::Tensor> all;
      for (const auto& buffer : net.buffers()) {
        all.push_back(here(buffer).to(torch::kDouble).flatten());
      }
      for (const auto& one : net.parameters()) {
        all.push_back(one.grad().to(torch::kDouble).flatten());
      }
      return torch::cat(all);
    };
    const auto plain = buffers_of(false, false);
    EXPECT_TRUE(buffers_of(true, false).equal(plain));
    EXPECT_TRUE(buffers_of(true, true).equal(plain));
  });
}

enum class Front : std::uint8_t { trainer, data_parallel };

std::string trained(int size, Front front, bool again) {
  return text_of_rank_0(size, [&](const Job& job) {
    Counted net;
    if (front == Front::trainer) {
      Trainer trainer(job, net, Adam{.lr = 0.1}, {.shards = 5, .seed = 2});
      for (int step = 0; step < 3; ++step) {
        trainer.step([&](Shard& shard) {
          const auto x = samples_of(step, shard.index());
          return shard.loss(run(net, x, again, false).square().mean());
        });
      }
      return trainer.state_sha256();
    }
    here(net);
    DataParallel parallel(job, net);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      run(net, samples_of(step, job.rank()), again, false).square().mean().backward();
      optimizer.step();
    }
    std::string text = parameters_sha256(net);
    for (const auto& buffer : net.buffers()) text += c10::str(buffer.cpu());
    return text;
  });
}

// promise: recompute#what-stays-the-same
TEST(RecomputeOutside, WhatACollectiveChangesIsChangedOnce) {
  for (const bool starts : {false, true}) {
    on_workers(2, [&](const Job& job) {
      const Group group(job);
      const auto sums_of = [&](bool again) {
        auto sums = here(torch::ones({kWidth}));
        const auto segment = [&](const torch::Tensor& x) {
          if (starts) {
            start_all_reduce(group, sums, Reduction::sum).wait();
          } else {
            all_reduce(group, sums, Reduction::sum);
          }
          return torch::tanh(x);
        };
        for (int step = 0; step < 3; ++step) {
          const auto x = here(samples_of(step, job.rank())).requires_grad_();
          (again ? recompute(segment, x) : segment(x)).sum().backward();
        }
        return sums;
      };
      EXPECT_TRUE(torch::equal(sums_of(false), here(torch::full({kWidth}, 8.0F))));
      EXPECT_TRUE(torch::equal(sums_of(true), here(torch::full({kWidth}, 8.0F))));
    });
  }
}

// findings-3: B12
TEST(RecomputeOutside, WhatACapturedModuleChangesIsChangedOnceInATrainer) {
  const auto plain = trained(1, Front::trainer, false);
  for (const int size : {1, 2, 3}) EXPECT_EQ(trained(size, Front::trainer, true), plain) << size;
}

// findings-3: B12
TEST(RecomputeOutside, WhatACapturedModuleChangesIsChangedOnceInADataParallel) {
  for (const int size : {1, 2, 3}) {
    EXPECT_EQ(trained(size, Front::data_parallel, true), trained(size, Front::data_parallel, false))
        << size;
  }
}

}  // namespace
}  // namespace tutti::test::recompute_outside
