// Codecs in a Trainer and in DataParallel: what reaches the optimizer, what goes into a checkpoint,
// what is refused. Exactness is in trainer_exact_test.cpp.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "codec/codec_model.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::trainer_codec_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

torch::nn::Linear layer() {
  torch::manual_seed(3);
  return torch::nn::Linear(torch::nn::LinearOptions(20, 15).bias(false));
}

/// A gradient of the weight that every shard makes up for itself.
torch::Tensor gradient_of(std::int64_t step, std::int64_t piece) {
  return torch::randn({15, 20}, at::make_generator<at::CPUGeneratorImpl>(
                                    static_cast<std::uint64_t>(step * 100 + piece)));
}

std::vector<float> values_of(const torch::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

/// What a codec with error feedback sends of each piece's gradient, averaged over `pieces` equal
/// ones: a step of the scalar model.
torch::Tensor mean_sent(const std::string& codec, std::int64_t step, std::int64_t pieces,
                        std::vector<torch::Tensor>& residuals) {
  auto sum = torch::zeros({15, 20});
  for (std::int64_t l = 0; l < pieces; ++l) {
    auto& residual = residuals[static_cast<std::size_t>(l)];
    const auto x = gradient_of(step, l) + residual;
    const auto sent = torch::tensor(sent_by(codec, values_of(x))).view({15, 20});
    residual = x - sent;
    sum += sent;
  }
  const auto mean = sum / static_cast<double>(pieces);
  if (codec != "int8") return mean;
  return torch::tensor(as_int8(values_of(mean))).view({15, 20});
}

TEST(TrainerCodec, TheOptimizerSeesTheMeanOfWhatWasSent) {
  for (const auto* codec : {"half", "bfloat16", "int8", "threshold:0.5", "topk:0.1"}) {
    on_workers(3, [&](const Job& job) {
      auto model = layer();
      auto beside = layer();
      torch::optim::Adam adam(beside->parameters(), torch::optim::AdamOptions(0.1));
      Trainer trainer(
          job, *model, Adam{.lr = 0.1},
          {.shards = 4, .compression = {.codec = codec_of(codec)}, .logical_workers = 4});
      std::vector<torch::Tensor> residuals(4, torch::zeros({15, 20}));
      for (std::int64_t step = 1; step <= 5; ++step) {
        const auto result = trainer.step([&](Shard& shard) {
          return shard.gradients({gradient_of(shard.step(), shard.index())}, 3.0);
        });
        EXPECT_TRUE(result.applied);
        beside->weight.mutable_grad() = mean_sent(codec, step, 4, residuals);
        adam.step();
        // half rounds the sum once more.
        const double tolerance =
            std::string(codec) == "half" || std::string(codec) == "bfloat16" ? 2e-2 : 1e-4;
        EXPECT_TRUE(torch::allclose(model->weight, beside->weight, tolerance, tolerance))
            << codec << ", step " << step;
      }
    });
  }
}

// promise: data_parallel.h#no_compression, data_parallel.h#traffic
TEST(TrainerCodec, DataParallelReducesWhatWasSent) {
  on_workers(3, [](const Job& job) {
    auto model = layer();
    DataParallel parallel(job, *model, {.compression = {.codec = top_k_codec(0.1)}});
    std::vector<torch::Tensor> residuals(3, torch::zeros({15, 20}));
    for (std::int64_t step = 1; step <= 4; ++step) {
      model->zero_grad();
      (model->weight * gradient_of(step, job.rank())).sum().backward();
      EXPECT_TRUE(torch::allclose(model->weight.grad(), mean_sent("topk:0.1", step, 3, residuals),
                                  1e-5, 1e-6));
      // 8 + 8·k of 300 values.
      EXPECT_EQ(parallel.report().max_sent_bytes, 8u + 8 * 30);
      EXPECT_EQ(parallel.report().dense_bytes, 4u * 300);
    }
    EXPECT_EQ(parallel.traffic().steps, 4);
    EXPECT_EQ(parallel.traffic().all_steps.at(0).values, 4 * 3 * 30);
  });
}

/// Lin et al. 2018: the weight after a step, of learning rate 1, of the scalar model.
struct CorrectedModel {
  explicit CorrectedModel(std::int64_t workers)
      : residuals(static_cast<std::size_t>(workers), torch::zeros({15, 20})),
        velocities(residuals) {}
  void step(std::int64_t number) {
    auto sum = torch::zeros({15, 20});
    for (std::size_t l = 0; l < residuals.size(); ++l) {
      const auto x = gradient_of(number, static_cast<std::int64_t>(l)) + 0.1 * weight;
      const auto u = 0.5 * velocities[l] + x;
      const auto v = residuals[l] + u;
      const auto sent = torch::tensor(sent_by("topk:0.1", values_of(v))).view({15, 20});
      residuals[l] = v - sent;
      velocities[l] = u * (sent == 0);
      sum += sent;
    }
    weight = weight - sum / static_cast<double>(residuals.size());
  }
  std::vector<torch::Tensor> residuals;
  std::vector<torch::Tensor> velocities;
  torch::Tensor weight = layer()->weight.detach().clone();
};

constexpr MomentumCorrection kCorrection{.momentum = 0.5, .weight_decay = 0.1};

// promise: codec.h#MomentumCorrection
TEST(TrainerCodec, MomentumIsCorrectedBeforeTheSelection) {
  on_workers(3, [](const Job& job) {
    auto model = layer();
    Trainer trainer(job, *model, Sgd{.lr = 1},
                    {.shards = 4,
                     .compression = {.codec = top_k_codec(0.1), .momentum_correction = kCorrection},
                     .logical_workers = 4});
    auto parallel_model = layer();
    DataParallel parallel(
        job, *parallel_model,
        {.compression = {.codec = top_k_codec(0.1), .momentum_correction = kCorrection}});
    torch::optim::SGD sgd(parallel_model->parameters(), torch::optim::SGDOptions(1));
    CorrectedModel of_trainer(4);
    CorrectedModel of_parallel(3);
    for (std::int64_t step = 1; step <= 6; ++step) {
      trainer.step([&](Shard& shard) {
        return shard.gradients({gradient_of(shard.step(), shard.index())});
      });
      of_trainer.step(step);
      EXPECT_TRUE(torch::allclose(model->weight, of_trainer.weight, 1e-4, 1e-4)) << step;
      sgd.zero_grad();
      (parallel_model->weight * gradient_of(step, job.rank())).sum().backward();
      sgd.step();
      of_parallel.step(step);
      EXPECT_TRUE(torch::allclose(parallel_model->weight, of_parallel.weight, 1e-4, 1e-4)) << step;
    }
  });
}

// Of a 16-bit parameter it is the master copy that decays: the run is that of a float32 one,
// rounded.
TEST(TrainerCodec, WeightsDecayFromTheirMasterCopies) {
  on_workers(2, [](const Job& job) {
    const auto small = [](const torch::Tensor& x) { return x.to(torch::kBFloat16); };
    const auto trained = [&](bool is_small) {
      auto model = layer();
      {
        const torch::NoGradGuard no_grad;
        model->weight.copy_(small(model->weight));
      }
      if (is_small) model->to(torch::kBFloat16);
      Trainer trainer(
          job, *model, Sgd{.lr = 0.05},
          {.shards = 2,
           .compression = {.codec = top_k_codec(0.5), .momentum_correction = kCorrection},
           .logical_workers = 2});
      for (std::int64_t step = 1; step <= 20; ++step) {
        trainer.step([&](Shard& shard) {
          const auto gradient = small(gradient_of(shard.step(), shard.index()));
          return shard.gradients({is_small ? gradient : gradient.to(torch::kFloat32)});
        });
      }
      return small(model->weight.detach());
    };
    EXPECT_TRUE(torch::equal(trained(true), trained(false)));
  });
}

// promise: codec.h#MomentumCorrection
TEST(TrainerCodec, MomentumThatActsTwiceIsRefused) {
  on_workers(2, [](const Job& job) {
    auto model = layer();
    const auto refused = [&](const Optimizer& optimizer, const Clip& clip = {}) {
      return text_of<InvalidArgument>([&] {
        Trainer trainer(
            job, *model, optimizer,
            {.shards = 2,
             .clip = clip,
             .compression = {.codec = top_k_codec(0.1), .momentum_correction = kCorrection}});
      });
    };
    const std::string why = "use Sgd without either";
    EXPECT_EQ(refused(Sgd{.lr = 1}), "");
    EXPECT_THAT(refused(Sgd{.lr = 1, .momentum = 0.9}),
                AllOf(HasSubstr("\"weight\""), HasSubstr(why)));
    EXPECT_THAT(refused(Sgd{.lr = 1, .weight_decay = 0.1}), HasSubstr(why));
    EXPECT_THAT(refused(Adam{}), HasSubstr(why));
    EXPECT_THAT(refused(Sgd{.lr = 1}, {.norm = 1}), HasSubstr("clip with momentum correction"));
  });
}

TEST(TrainerCodec, AnUntouchedParameterSendsNothingAndKeepsWhatWasLeft) {
  on_workers(2, [](const Job& job) {
    auto model = torch::nn::ModuleList(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    Trainer trainer(
        job, *model, Sgd{.lr = 1, .momentum = 0.9},
        {.shards = 2, .compression = {.codec = top_k_codec(0.1), .scope = CodecScope::tensor}});
    const auto first = model[0]->as<torch::nn::Linear>();
    const auto second = model[1]->as<torch::nn::Linear>();
    const auto step = [&](bool both) {
      return trainer.step([&](Shard& shard) {
        const auto x = torch::ones({2, 4}) * static_cast<double>(1 + shard.index());
        auto y = first->forward(x);
        if (both) y = second->forward(y);
        return shard.loss(y.square().mean());
      });
    };
    EXPECT_EQ(step(true).report.parameters_touched, 4);
    const auto weight = second->weight.clone();
    // Of the second layer's weight.
    const auto residual = trainer.traffic().all_steps.at(2).residual_norm;
    EXPECT_GT(residual, 0);
    EXPECT_EQ(step(false).report.parameters_touched, 2);
    EXPECT_TRUE(torch::equal(second->weight, weight));
    EXPECT_EQ(trainer.traffic().last_step.at(2).touched, 0);
    EXPECT_EQ(trainer.traffic().last_step.at(2).bytes, 0u);
    EXPECT_EQ(trainer.traffic().all_steps.at(2).residual_norm, residual);
    step(true);
    EXPECT_FALSE(torch::equal(second->weight, weight));
  });
}

// promise: traffic.h#BucketTraffic, trainer.h#traffic
TEST(TrainerCodec, WithoutACodecTrafficIsDense) {
  on_workers(2, [](const Job& job) {
    auto model = layer();
    Trainer trainer(job, *model, Sgd{.lr = 1}, {.shards = 2});
    EXPECT_EQ(trainer.traffic().table(), "nothing was sent\n");
    trainer.step([&](Shard& shard) { return shard.gradients({gradient_of(1, shard.index())}); });
    const auto traffic = trainer.traffic();
    EXPECT_EQ(traffic.all_steps.at(0).bytes, 4u * 4 * 300);
    EXPECT_EQ(traffic.all_steps.at(0).bytes_dense, 4u * 4 * 300);
    EXPECT_THAT(traffic.table(), HasSubstr("weight"));
    // One that is dropped does not count.
    trainer.step([&](Shard& shard) { return shard.gradients({gradient_of(1, 1) * NAN}); });
    EXPECT_EQ(trainer.traffic().steps, 1);
  });
}

// promise: codec.h#encode
TEST(TrainerCodec, WhatDoesNotFitDropsTheStepAndSaysSo) {
  on_workers(2, [](const Job& job) {
    auto model = layer();
    Trainer trainer(job, *model, Sgd{.lr = 1},
                    {.shards = 2, .compression = {.codec = half_codec()}, .logical_workers = 2});
    const auto before = trainer.state_sha256();
    const auto step = [&](double factor) {
      return trainer.step([&](Shard& shard) {
        const double mine = shard.index() == 1 ? factor : 1;
        return shard.gradients({torch::full({15, 20}, mine)});
      });
    };
    EXPECT_EQ(step(1e5).dropped_because,
              "the gradient of \"weight\" in logical worker 1 cannot be sent: 100000 is beyond the "
              "range of half");
    EXPECT_EQ(trainer.state_sha256(), before);
    EXPECT_TRUE(step(6e4).applied);
    EXPECT_EQ(trainer.traffic().steps, 1);
  });
}

TEST(TrainerCodec, AnOverflowShrinksADynamicLossScaleAsWithoutACodec) {
  on_workers(2, [](const Job& job) {
    auto model = layer();
    Trainer trainer(job, *model, Sgd{.lr = 1e-30},
                    {.shards = 2,
                     .loss_scale = {.start = 4, .dynamic = true},
                     .compression = {.codec = top_k_codec(0.5), .clamp = 100},
                     .max_consecutive_drops = 1});
    // Finite in each shard, not in their sum.
    const auto step = [&] {
      return trainer.step([&](Shard& shard) {
        return shard.gradients({torch::full({15, 20}, 6e37)});
      });
    };
    const auto dropped = step();
    EXPECT_EQ(dropped.dropped_because,
              "the gradient of \"weight\" in logical worker 0 is not finite");
    EXPECT_EQ(dropped.loss_scale, 4);
    EXPECT_EQ(trainer.traffic().steps, 0);
    const auto applied = step();
    EXPECT_TRUE(applied.applied);
    EXPECT_EQ(applied.loss_scale, 2);
  });
}

// promise: trainer.h#gradient
TEST(TrainerCodec, BetweenTheHalvesTheGradientIsWhatWasSent) {
  on_workers(2, [](const Job& job) {
    auto model = layer();
    Trainer trainer(
        job, *model, Sgd{.lr = 1},
        {.shards = 2, .compression = {.codec = top_k_codec(0.1)}, .logical_workers = 2});
    std::vector<torch::Tensor> residuals(2, torch::zeros({15, 20}));
    for (std::int64_t step = 1; step <= 3; ++step) {
      trainer.accumulate([&](Shard& shard) {
        return shard.gradients({gradient_of(shard.step(), shard.index())});
      });
      const auto sent = mean_sent("topk:0.1", step, 2, residuals);
      EXPECT_TRUE(torch::allclose(trainer.gradient("weight"), sent, 1e-5, 1e-6));
      EXPECT_NEAR(trainer.gradient_norm(), sent.norm().item<double>(), 1e-4);
      trainer.apply();
      EXPECT_EQ(trainer.traffic().last_step.at(0).messages, 2);
    }
    trainer.accumulate([&](Shard& shard) {
      return shard.gradients({gradient_of(1, 1) * (shard.index() == 1 ? NAN : 1.0)});
    });
    EXPECT_TRUE(std::isnan(trainer.gradient_norm()));
    EXPECT_TRUE(trainer.gradient("weight").isnan().all().item<bool>());
    EXPECT_FALSE(trainer.apply().applied);
  });
}

/// Outside the library: one byte per value, as a part of the largest.
class ByteCodec : public Codec {
 public:
  std::string name() const override { return "byte"; }
  std::size_t bound(std::int64_t count, const EncodeContext&) const override {
    return sizeof(float) + static_cast<std::size_t>(count);
  }
  Encoded encode(std::span<const float> values, const EncodeContext& exchange,
                 std::byte* message) const override {
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    std::memcpy(message, &largest, sizeof largest);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto part = largest == 0 ? 0.0f : std::nearbyint(127 * (values[i] / largest));
      message[sizeof largest + i] = static_cast<std::byte>(static_cast<std::int8_t>(part));
    }
    const auto count = static_cast<std::int64_t>(values.size());
    return {.bytes = bound(count, exchange), .values = count};
  }
  void decode(std::span<const std::byte> message, const EncodeContext&, std::int64_t begin,
              std::span<float> to) const override {
    float largest = 0;
    std::memcpy(&largest, message.data(), sizeof largest);
    for (std::size_t i = 0; i < to.size(); ++i) {
      const auto at = sizeof largest + static_cast<std::size_t>(begin) + i;
      to[i] = static_cast<float>(static_cast<std::int8_t>(message[at])) * largest / 127;
    }
  }
};

// promise: codec.h#subtract, codec.h#sum_bytes
TEST(TrainerCodec, ACodecOfOnesOwnHasAllThatOursHave) {
  const auto run = [](int workers) {
    return text_of_rank_0(workers, [](const Job& job) {
      auto model = layer();
      Trainer trainer(job, *model, Adam{.lr = 0.1},
                      {.shards = 5,
                       .compression = {.codec = std::make_shared<ByteCodec>()},
                       .logical_workers = 3});
      for (int step = 1; step <= 3; ++step) {
        const auto result = trainer.step([&](Shard& shard) {
          return shard.gradients({gradient_of(shard.step(), shard.index())});
        });
        EXPECT_TRUE(result.applied);
        EXPECT_EQ(result.report.max_sent_bytes, 304u);
      }
      const auto traffic = trainer.traffic().all_steps.at(0);
      EXPECT_EQ(traffic.bytes, 3u * (3 * 304 + 3 * 4 * 300));
      EXPECT_GT(traffic.residual_norm, 0);
      return trainer.state_sha256();
    });
  };
  const auto one = run(1);
  EXPECT_EQ(run(2), one);
  EXPECT_EQ(run(5), one);
}

// promise: codec.h#name, trainer_options.h#logical_workers
TEST(TrainerCodec, OptionsThatMakeNoSenseAreRefused) {
  on_workers(2, [](const Job& job) {
    auto model = layer();
    const auto refusal = [&](const TrainerOptions& options) {
      return text_of([&] { Trainer trainer(job, *model, Sgd{.lr = 1}, options); });
    };
    EXPECT_THAT(refusal({.shards = 4, .logical_workers = 5}),
                HasSubstr("5 logical workers of 4 shards"));
    EXPECT_THAT(refusal({.shards = 4, .logical_workers = -1}), HasSubstr("must be 1 to"));
    EXPECT_THAT(refusal({.compression = {.codec = half_codec(), .fusion = 0}}),
                HasSubstr("fusion 0"));
    auto wide = layer();
    wide->to(torch::kFloat64);
    EXPECT_THAT(text_of<Unsupported>([&] {
                  Trainer trainer(job, *wide, Sgd{.lr = 1},
                                  {.compression = {.codec = half_codec()}});
                }),
                HasSubstr("parameter \"weight\" is float64"));
    EXPECT_THAT(text_of<Mismatch>([&] {
                  const auto codec = job.rank() == 0 ? half_codec() : bfloat16_codec();
                  Trainer trainer(job, *model, Sgd{.lr = 1}, {.compression = {.codec = codec}});
                }),
                AllOf(HasSubstr("codec"), HasSubstr("half"), HasSubstr("bfloat16")));
  });
}

// promise: codec.h#name, codec.h#text_of, trainer.h#load
TEST(TrainerCodec, ACheckpointOfOtherResidualsIsRefused) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    auto model = layer();
    const TrainerOptions options{
        .shards = 4, .compression = {.codec = top_k_codec(0.1)}, .logical_workers = 2};
    const auto trainer_with = [&](const TrainerOptions& some) {
      return Trainer(job, *model, Sgd{.lr = 1}, some);
    };
    {
      auto trainer = trainer_with(options);
      trainer.step([&](Shard& shard) { return shard.gradients({gradient_of(1, shard.index())}); });
      trainer.save(folder.file("run"));
    }
    const auto refusal = [&](const TrainerOptions& some) {
      auto trainer = trainer_with(some);
      return text_of([&] { trainer.load(folder.file("run")); });
    };
    auto other = options;
    other.logical_workers = 4;
    EXPECT_THAT(refusal(other), AllOf(HasSubstr("logical workers"), HasSubstr("of another run")));
    other = options;
    other.compression.error_feedback = false;
    EXPECT_THAT(refusal(other), HasSubstr("error feedback on"));
    other = options;
    other.compression.codec = top_k_codec(0.2);
    EXPECT_THAT(refusal(other), HasSubstr("topk:0.2"));
    other.compression.codec = {};
    EXPECT_THAT(refusal(other), HasSubstr("codec"));
    EXPECT_EQ(refusal(options), "");
  });
}

}  // namespace
}  // namespace tutti::test::trainer_codec_cases
