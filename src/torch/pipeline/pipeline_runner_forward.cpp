// A shard's way forward through a stage: see pipeline_runner.h.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "run/metric_exchange.h"
#include "torch/model/generators.h"
#include "torch/pipeline/pipeline_runner.h"
#include "tutti/error.h"

namespace tutti {

std::string PipelineRunner::where(int stage, int shard) const {
  const auto s = static_cast<std::size_t>(stage);
  return fmt::format("stage {} (layers {} to {}) in shard {}", stage, bounds_[s],
                     bounds_[s + 1] - 1, step_shard(shard));
}

void PipelineRunner::forward(int stage, int shard) {
  auto& passage = passages_[{stage, shard}];
  parts_.runner.enter(step_shard(shard));
  TensorList values;
  if (stage == 0) {
    values = begin_shard(passage, shard);
  } else {
    passage.runs = passage.in.state == StageMessage::State::runs;
    passage.used_before = std::move(passage.in.used);
    if (passage.runs) {
      set_generator_state(default_generator(), passage.in.generator);
      const auto entered = passage.graph.enter(passage.in.tensors, passage.in.need_gradient);
      for (const auto place : passage.in.places) values.push_back(entered.at(place));
    }
  }
  TensorList outputs;
  if (passage.runs) outputs = run_layers(stage, shard, values);
  if (is_last(stage)) {
    end_shard(passage, shard, outputs);
  } else {
    give_on(stage, shard, passage, outputs);
  }
  passage.in = {};
  if (passage.runs) note_buffers(shard);
}

/// What the program's first closure gives.
TensorList PipelineRunner::begin_shard(Passage& passage, int shard) {
  torch::manual_seed(parts_.runner.seed_of(step_shard(shard)));
  auto own = parts_.runner.shard_of(step_shard(shard));
  TensorList values;
  parts_.runner.run_alone([&] { values = (*inputs_)(own); });
  add_metrics(shard, parts_.runner.take_metrics(own));
  passage.runs = !values.empty();
  passage.used_before.assign(parameters_.size(), 0);
  return values;
}

/// What a layer says of its inputs is of little use without what the stage before has given.
TensorList PipelineRunner::run_layers(int stage, int shard, const TensorList& inputs) {
  auto values = inputs;
  const auto s = static_cast<std::size_t>(stage);
  int layer = bounds_[s];
  try {
    parts_.runner.run_alone([&] {
      for (; layer < bounds_[s + 1]; ++layer) {
        values = pipeline_.layers[static_cast<std::size_t>(layer)](values);
      }
    });
  } catch (const c10::Error& error) {
    if (stage == 0) throw;
    std::vector<std::string> given;
    for (const auto& input : inputs) {
      given.push_back(input.defined() ? fmt::format("{} [{}]", c10::toString(input.scalar_type()),
                                                    fmt::join(input.sizes(), ", "))
                                      : std::string("nothing"));
    }
    throw InvalidArgument(fmt::format("layer {} of {}, to which stage {} has given {}: {}", layer,
                                      where(stage, shard), stage - 1, fmt::join(given, ", "),
                                      error.what_without_backtrace()));
  }
  return values;
}

/// What the program's last closure answers.
void PipelineRunner::end_shard(Passage& passage, int shard, const TensorList& outputs) {
  std::optional<ShardRunner::Loss> loss;
  if (passage.runs) {
    auto own = parts_.runner.shard_of(step_shard(shard));
    ShardAnswer answer;
    parts_.runner.run_alone([&] { answer = (*loss_)(own, outputs); });
    loss = parts_.runner.loss_of(own, answer);
    add_metrics(shard, parts_.runner.take_metrics(own));
  }
  passage.runs = loss.has_value();
  if (!loss) return;
  passage.weight = loss->weight;
  passage.graph.leave({loss->value});
  passage.back.tensors = {torch::ones_like(loss->value)};
}

void PipelineRunner::give_on(int stage, int shard, Passage& passage, const TensorList& outputs) {
  StageMessage message;
  message.state = passage.runs ? StageMessage::State::runs : StageMessage::State::nothing;
  if (passage.runs) {
    message.generator = generator_state_of(default_generator());
    TensorList leaving;
    for (const auto& output : outputs) {
      auto place = std::ranges::find_if(
          leaving, [&](const torch::Tensor& one) { return one.is_same(output); });
      if (place == leaving.end()) place = leaving.insert(place, output);
      message.places.push_back(static_cast<std::uint32_t>(place - leaving.begin()));
    }
    passage.graph.leave(leaving);
    message.used = passage.used_before;
    for (const auto& parameter : passage.graph.parameters()) {
      const auto p = index_of(parameter);
      if (p < message.used.size()) message.used[p] = 1;
    }
    for (const auto& output : leaving) {
      const bool needs = output.defined() && output.requires_grad();
      message.tensors.push_back(output.defined() ? output.detach() : output);
      message.need_gradient.push_back(needs ? 1 : 0);
    }
  }
  const bool stays = std::ranges::find(own_stages_, stage + 1) != own_stages_.end();
  if (stays) {
    passages_[{stage + 1, shard}].in = std::move(message);
  } else {
    outbox_[{stage, shard}] = std::move(message);
  }
}

void PipelineRunner::note_buffers(int shard) {
  auto changed = parts_.buffers.changes();
  auto& buffers = progress_[static_cast<std::size_t>(shard)].buffers;
  buffers.resize(changed.size());
  for (std::size_t b = 0; b < changed.size(); ++b) {
    if (!changed[b].defined()) continue;
    if (buffers[b].defined()) {
      throw InvalidArgument(fmt::format(
          "buffer \"{}\" is changed by two stages of the pipeline: whose value counts is not known",
          parts_.model.buffers()[b].first));
    }
    buffers[b] = std::move(changed[b]);
  }
}

void PipelineRunner::add_metrics(int shard, const ShardMetrics& metrics) {
  auto& own = progress_[static_cast<std::size_t>(shard)].metrics;
  own = joined(own, metrics);
}

}  // namespace tutti
