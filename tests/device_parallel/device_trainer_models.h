#pragma once

// Models that a Trainer trains on the test device, and a step of them.

#include <limits>

#include "device_parallel/device_workers.h"

namespace tutti::test::device_trainer_cases {

namespace nn = torch::nn;

struct Net : Normed {
  nn::Dropout dropout{register_module("dropout", nn::Dropout(0.3))};
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::mse_loss(second(torch::tanh(dropout(norm(first(x))))), y);
  }
};

struct Case {
  const char* name;
  Optimizer optimizer = Adam{.lr = 0.01};
  TrainerOptions options = {};
};

/// A step of the Trainer, whose shards have another weight each, and one of them nothing.
inline StepResult step(Trainer& trainer, Net& net, c10::Device where) {
  static const Batch batch(24, 7);
  return trainer.step([&](Shard& shard) {
    const auto rows = shard.indices(24, 3);
    if (rows.empty() || (shard.step() == 2 && shard.index() == 1)) return shard.nothing();
    auto carried = shard.state("carried", [&] { return torch::zeros({1}, where); });
    carried.add_(1 + static_cast<double>(shard.index()));
    const auto at = torch::tensor(rows);
    const auto loss =
        net.loss(batch.x.index_select(0, at).to(where), batch.y.index_select(0, at).to(where));
    // A step that is dropped for a gradient that is not finite.
    const bool is_bad = shard.step() == 3 && shard.index() == 3;
    const auto carried_loss = (loss * carried).squeeze(0);
    return shard.loss(
        is_bad ? carried_loss * std::numeric_limits<double>::infinity() : carried_loss,
        static_cast<double>(rows.size()));
  });
}

inline TrainerOptions options_of(const Case& one) {
  auto options = one.options;
  options.shards = 4;
  options.audit_every = 2;
  options.desync_check_every = 1;
  return options;
}

inline std::string text_of_result(const StepResult& result) {
  return fmt::format("{} {} {} {} {}\n", result.dropped_because, result.loss, result.weight,
                     result.loss_scale, result.gradient_norm.value_or(0));
}

struct Plain : nn::Module {
  nn::Embedding table{register_module("table", nn::Embedding(11, 6))};
  nn::Linear first{register_module("first", nn::Linear(6, 17))};
  nn::Dropout dropout{register_module("dropout", nn::Dropout(0.3))};
  nn::Linear second{register_module("second", nn::Linear(17, 3))};
  torch::Tensor loss(std::uint64_t seed, c10::Device where, bool again) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto words = torch::randint(11, {5}, generator, torch::kInt64).to(where);
    const auto x = table(words);
    const auto hidden = [&](const torch::Tensor& in) { return dropout(torch::tanh(first(in))); };
    return second(again ? recompute(hidden, x) : hidden(x)).to(torch::kFloat32).square().mean();
  }
};

}  // namespace tutti::test::device_trainer_cases
