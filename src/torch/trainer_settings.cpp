#include "torch/trainer_settings.h"

#include <fmt/format.h>

#include <cmath>

#include "tutti/error.h"

namespace tutti {
namespace {

void require_bound(double bound, std::string_view name) {
  if (std::isfinite(bound) && bound >= 0) return;
  throw BadInput(fmt::format("{} {}: must be finite and not negative", name, bound));
}

struct ToUpdateRule {
  UpdateRule operator()(const Sgd& sgd) const {
    return SgdRule{.learning_rate = sgd.lr,
                   .momentum = sgd.momentum,
                   .dampening = sgd.dampening,
                   .weight_decay = sgd.weight_decay,
                   .nesterov = sgd.nesterov};
  }
  UpdateRule operator()(const Adam& adam) const { return adam_rule(adam, false); }
  UpdateRule operator()(const AdamW& adam) const { return adam_rule(adam, true); }
  template <class AnyAdam>
  static UpdateRule adam_rule(const AnyAdam& adam, bool decoupled) {
    return AdamRule{.learning_rate = adam.lr,
                    .beta1 = adam.beta1,
                    .beta2 = adam.beta2,
                    .epsilon = adam.eps,
                    .weight_decay = adam.weight_decay,
                    .decoupled = decoupled};
  }
};

}  // namespace

void require_options(const TrainerOptions& options) {
  if (options.shards < 1) {
    throw BadInput(fmt::format("{} shards: a step has at least 1", options.shards));
  }
  require_bound(options.clip.norm, "clip.norm");
  require_bound(options.clip.parameter_norm, "clip.parameter_norm");
  require_bound(options.clip.value, "clip.value");
  if (options.most_drops < 1) throw BadInput("most_drops must be at least 1");
  if (options.digest_every < 0) throw BadInput("digest_every must not be negative");
  if (options.deadline && options.deadline->count() <= 0) {
    throw BadInput("the deadline must be positive");
  }
}

ExchangeOptions exchange_options_of(const TrainerOptions& options) {
  return {.name = options.name,
          .divisor = Divisor::weights,
          .sync_buffers = false,
          .digest_every = options.digest_every,
          .measures = true,
          .deadline = options.deadline};
}

Settings settings_of(const TrainerOptions& options, const Optimizer& optimizer,
                     const WrappedModel& model) {
  Settings settings{{"name", options.name},
                    {"torch", TORCH_VERSION},
                    {"intra-op threads", std::to_string(at::get_num_threads())},
                    {"shards", std::to_string(options.shards)},
                    {"seed", std::to_string(options.seed)},
                    {"schedule", options.schedule.text()},
                    {"clip", fmt::format("norm {} parameter norm {} value {}", options.clip.norm,
                                         options.clip.parameter_norm, options.clip.value)},
                    {"most_drops", std::to_string(options.most_drops)},
                    {"digest_every", std::to_string(options.digest_every)}};
  for (const auto& item : model.parameters()) {
    settings.emplace_back("rule of " + item.first, text_of(optimizer.rule_of(item.first)));
  }
  return settings;
}

UpdateRule update_rule_of(const Optimizer::Rule& rule) { return std::visit(ToUpdateRule{}, rule); }

int states_of(const UpdateRule& rule) {
  if (const auto* sgd = std::get_if<SgdRule>(&rule)) return sgd->momentum != 0 ? 1 : 0;
  return 2;
}

}  // namespace tutti
