// A shard's way back through a stage: see pipeline_runner.h.

#include <algorithm>

#include "torch/model/random_state.h"
#include "torch/model/without_hooks.h"
#include "torch/pipeline/pipeline_runner.h"

namespace tutti {

void PipelineRunner::backward(const StageAction& action) {
  const auto& [work, stage, shard] = action;
  auto& passage = passages_.at({stage, shard});
  auto& progress = progress_[static_cast<std::size_t>(shard)];
  const bool begins = work != StageWork::backward_weight;
  if (begins && !is_last(stage)) {
    passage.runs = passage.back.state == StageMessage::State::runs;
    passage.weight = passage.back.weight;
  }
  parts_.runner.enter(step_shard(shard));
  if (passage.runs) {
    parts_.buffers.put_back(passage.buffers);
    RandomState(begins ? passage.back.random_state : passage.random_state).restore();
  }
  // The leaf of a shard is written by the last of this worker's stages to finish it.
  const bool finishes = work != StageWork::backward_input;
  const bool closes = finishes && --progress.open == 0;
  if (closes) {
    progress.runs = passage.runs;
    parts_.runner.begin_leaf(passage.runs ? passage.weight : 0);
    for (auto& [parameter, gradient] : progress.held) parts_.runner.write(parameter, gradient);
    progress.held.clear();
  }
  if (passage.runs) {
    // Hooks of a parameter are for its whole gradient, in the stage that reads it first.
    TensorList read_before;
    for (const auto& parameter : passage.graph.parameters()) {
      const auto p = index_of(parameter);
      if (p < passage.used_before.size() && passage.used_before[p] != 0) {
        read_before.push_back(parameter);
      }
    }
    const WithoutHooks quiet(read_before);
    const auto redirect = [&, stage = stage](std::size_t parameter, const torch::Tensor& value) {
      if (passage.used_before[parameter] != 0) {
        passage.out.parameters.emplace_back(static_cast<std::int64_t>(parameter), value);
        return true;
      }
      parts_.keepers.note(parameter, stage);
      if (!closes) progress.held.emplace_back(parameter, value);
      return !closes;
    };
    parts_.runner.backward(
        [&, stage = stage, work = work] {
          if (!begins) return passage.graph.backward_weights();
          const auto more = arrived_parameters(stage, passage);
          const auto gradients = std::exchange(passage.back, {}).tensors;
          if (work == StageWork::backward) return passage.graph.backward(gradients, more);
          passage.graph.backward_inputs(gradients, more, read_before);
        },
        redirect);
    passage.random_state = RandomState().bytes();
  }
  if (closes) parts_.runner.end_leaf(passage.runs);
  if (begins && stage > 0) give_back(stage, shard);
  if (finishes) passages_.erase({stage, shard});
}

/// Returns the gradients of parameters that this stage reads; the others go on to an earlier stage.
/// The first stage takes all.
std::vector<ParameterGradient> PipelineRunner::arrived_parameters(int stage, Passage& passage) {
  std::vector<ParameterGradient> own;
  for (auto& [index, gradient] : passage.back.parameters) {
    const auto& parameter = parts_.model.tensor(static_cast<std::size_t>(index));
    const bool is_read = stage == 0 || std::ranges::any_of(passage.graph.parameters(),
                                                           [&](const torch::Tensor& one) {
                                                             return one.is_same(parameter);
                                                           });
    if (is_read) {
      own.push_back({parameter, std::move(gradient)});
    } else {
      passage.out.parameters.emplace_back(index, std::move(gradient));
    }
  }
  return own;
}

void PipelineRunner::give_back(int stage, int shard) {
  auto& passage = passages_.at({stage, shard});
  auto message = std::move(passage.out);
  passage.out = {};
  message.state = passage.runs ? StageMessage::State::runs : StageMessage::State::nothing;
  message.weight = passage.weight;
  message.random_state = passage.random_state;
  message.tensors = passage.runs ? passage.graph.take_input_gradients() : TensorList();
  if (has_stage(stage - 1)) {
    passages_.at({stage - 1, shard}).back = std::move(message);
  } else {
    back_outbox_[{stage, shard}] = std::move(message);
  }
}

}  // namespace tutti
