// A shard's way forward through a stage: see pipeline_runner.h.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "run/numbers/metric_exchange.h"
#include "torch/model/overlap.h"
#include "torch/model/random_state.h"
#include "torch/model/same_bytes.h"
#include "torch/model/type_text.h"
#include "torch/pipeline/pipeline_runner.h"
#include "torch/shards/pipeline_settings.h"
#include "tutti/error.h"

namespace tutti {

namespace {

std::vector<std::uint32_t> versions_of(const TensorList& tensors) {
  std::vector<std::uint32_t> versions;
  for (const auto& tensor : tensors) versions.push_back(tensor.defined() ? tensor._version() : 0);
  return versions;
}

bool share_memory(const torch::Tensor& one, const torch::Tensor& other) {
  return one.defined() && other.defined() && overlap(one, other);
}

/// With the strides that it has: kernels are chosen by them.
torch::Tensor copy_as_it_lies(const torch::Tensor& tensor) {
  if (tensor.numel() == 0) return tensor.clone();
  std::int64_t span = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) span += (tensor.size(d) - 1) * tensor.stride(d);
  const auto memory = tensor.detach().as_strided({span}, {1}).clone();
  return memory.as_strided(tensor.sizes(), tensor.strides(), 0);
}

std::string described(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return type_text(tensor);
}

}  // namespace

std::string PipelineRunner::where(int stage, int shard) const {
  const auto s = static_cast<std::size_t>(stage);
  const int first = bounds_[s];
  const int last = bounds_[s + 1] - 1;
  const auto layers =
      first == last ? fmt::format("layer {}", first) : fmt::format("layers {} to {}", first, last);
  return fmt::format("stage {} ({}) in shard {}", stage, layers, step_shard(shard));
}

void PipelineRunner::forward(int stage, int shard) {
  auto& passage = passages_[{stage, shard}];
  parts_.runner.enter(step_shard(shard));
  parts_.buffers.enter(passage.in.buffers);
  TensorList values;
  if (stage == 0) {
    values = begin_shard(passage, shard);
  } else {
    passage.runs = passage.in.state == StageMessage::State::runs;
    passage.used_before = std::move(passage.in.used);
    if (passage.runs) {
      RandomState(passage.in.random_state).restore();
      passage.entered = passage.graph.enter(passage.in.tensors, passage.in.need_gradient);
      for (const auto place : passage.in.places) values.push_back(passage.entered.at(place));
    }
  }
  TensorList outputs;
  if (passage.runs) {
    const auto versions = versions_of(passage.entered);
    outputs = run_layers(stage, shard, std::move(values));
    require_apart_unchanged(stage, shard, passage, versions);
  }
  if (is_last(stage)) end_shard(passage, shard, outputs);
  NumberedTensors changed;
  if (passage.runs) {
    changed = note_buffers(stage, shard, passage.in);
    passage.buffers = parts_.buffers.place();
  }
  if (!is_last(stage)) give_on(stage, shard, passage, outputs, std::move(changed));
  passage.in = {};
  passage.entered.clear();
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
  if (workers_of(pipeline_) > 1) copy_inputs(passage, values);
  return values;
}

/// Other shards are begun before this one's backward: a program may use its memory again.
void PipelineRunner::copy_inputs(Passage& passage, TensorList& values) {
  const auto given = values;
  std::map<const void*, torch::Tensor> copies;
  for (auto& value : values) {
    if (!value.defined() || value.requires_grad() || value.layout() != torch::kStrided) continue;
    auto& copy = copies[value.unsafeGetTensorImpl()];
    if (!copy.defined()) {
      copy = copy_as_it_lies(value);
      passage.entered.push_back(copy);
      passage.in.apart.push_back(std::ranges::any_of(given, [&](const torch::Tensor& other) {
        return !other.is_same(value) && share_memory(other, value);
      }));
    }
    value = copy;
  }
}

/// What a layer says of its inputs is of little use without what it was given.
TensorList PipelineRunner::run_layers(int stage, int shard, TensorList values) {
  const auto s = static_cast<std::size_t>(stage);
  int layer = bounds_[s];
  const auto named = [&](const char* text) {
    std::vector<std::string> given;
    for (const auto& value : values) given.push_back(described(value));
    if (given.empty()) given.emplace_back("no tensor");
    const auto giver = layer > bounds_[s] ? fmt::format("layer {}", layer - 1)
                       : stage > 0        ? fmt::format("stage {}", stage - 1)
                                          : std::string("the first closure");
    return InvalidArgument(fmt::format("layer {} of {}, to which {} has given {}: {}", layer,
                                       where(stage, shard), giver, fmt::join(given, ", "), text));
  };
  try {
    parts_.runner.run_alone([&] {
      for (; layer < bounds_[s + 1]; ++layer) {
        values = pipeline_.layers[static_cast<std::size_t>(layer)](values);
      }
    });
  } catch (const c10::Error& error) {
    throw named(error.what_without_backtrace());
  } catch (const std::out_of_range& error) {
    throw named(error.what());
  }
  return values;
}

/// Tensors that share memory come to another worker apart: a change of one in place would be one of
/// both in a model of one piece.
void PipelineRunner::require_apart_unchanged(int stage, int shard, const Passage& passage,
                                             const std::vector<std::uint32_t>& versions) const {
  for (std::size_t t = 0; t < versions.size(); ++t) {
    if (passage.in.apart[t] == 0 || passage.entered[t]._version() == versions[t]) continue;
    throw InvalidArgument(fmt::format(
        "{} changes in place a tensor that it was given, {}, which shared memory with another one "
        "before it came to this worker: only one of them changes now. Change a clone(), or cut "
        "elsewhere",
        where(stage, shard), described(passage.entered[t])));
  }
}

/// What the program's last closure answers.
void PipelineRunner::end_shard(Passage& passage, int shard, const TensorList& outputs) {
  std::optional<ShardRunner::Loss> loss;
  if (!passage.runs && !has_stage(0)) parts_.notes.leave_one_out();
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
  leave(pipeline_.stages - 1, shard, passage, {loss->value});
  passage.back.tensors = {torch::ones_like(loss->value)};
  passage.back.random_state = RandomState().bytes();
}

void PipelineRunner::give_on(int stage, int shard, Passage& passage, const TensorList& outputs,
                             NumberedTensors buffers) {
  StageMessage message{.buffers = std::move(buffers)};
  message.state = passage.runs ? StageMessage::State::runs : StageMessage::State::nothing;
  if (passage.runs) {
    message.random_state = RandomState().bytes();
    TensorList leaving;
    for (const auto& output : outputs) {
      auto place = std::ranges::find_if(
          leaving, [&](const torch::Tensor& one) { return one.is_same(output); });
      if (place == leaving.end()) place = leaving.insert(place, output);
      message.places.push_back(static_cast<std::uint32_t>(place - leaving.begin()));
    }
    leave(stage, shard, passage, leaving);
    message.used = passage.used_before;
    for (std::size_t p = 0; p < message.used.size(); ++p) message.used[p] |= shared_[p];
    for (const auto& parameter : passage.graph.parameters()) {
      const auto p = index_of(parameter);
      if (p < message.used.size()) message.used[p] = 1;
    }
    for (const auto& output : leaving) {
      const bool needs = output.defined() && output.requires_grad();
      message.tensors.push_back(output.defined() ? output.detach() : output);
      message.need_gradient.push_back(needs ? 1 : 0);
      message.apart.push_back(is_apart(passage, leaving, output) ? 1 : 0);
    }
  }
  if (has_stage(stage + 1)) {
    passages_[{stage + 1, shard}].in = std::move(message);
  } else {
    outbox_[{stage, shard}] = std::move(message);
  }
}

/// Whether the next stage knows not that the memory of `output` is that of another tensor, too.
bool PipelineRunner::is_apart(const Passage& passage, const TensorList& leaving,
                              const torch::Tensor& output) const {
  for (const auto& item : parts_.model.buffers()) {
    if (share_memory(item.second, output)) return true;
  }
  for (std::size_t t = 0; t < passage.entered.size(); ++t) {
    if (passage.in.apart[t] != 0 && share_memory(passage.entered[t], output)) return true;
  }
  return std::ranges::any_of(leaving, [&](const torch::Tensor& other) {
    return !other.is_same(output) && share_memory(other, output);
  });
}

void PipelineRunner::leave(int stage, int shard, Passage& passage, const TensorList& results) {
  passage.graph.leave(results);
  if (!passage.graph.reaches_elsewhere()) return;
  throw InvalidArgument(
      fmt::format("{} reads a tensor with a gradient that another stage, shard or step has "
                  "computed: what a layer needs is given to it by the layer before",
                  where(stage, shard)));
}

/// Buffers that the shard has changed so far, in this stage or before it.
NumberedTensors PipelineRunner::note_buffers(int stage, int shard, const StageMessage& in) {
  auto changed = parts_.buffers.changes();
  auto& progress = progress_[static_cast<std::size_t>(shard)];
  progress.buffers.resize(changed.size());
  progress.changed_by.resize(changed.size());
  std::vector<torch::Tensor> arrived(changed.size());
  for (const auto& [b, value] : in.buffers) arrived[static_cast<std::size_t>(b)] = value;
  NumberedTensors all;
  for (std::size_t b = 0; b < changed.size(); ++b) {
    if (!changed[b].defined() && !arrived[b].defined()) continue;
    changed_[b] = 1;
    const bool has_come = arrived[b].defined();
    if (has_come && !(changed[b].defined() && same_bytes(changed[b], arrived[b]))) {
      throw InvalidArgument(fmt::format(
          "buffer \"{}\" is changed by {}, and by a stage before it: whose value counts "
          "is not known",
          parts_.model.buffers()[b].first, where(stage, shard)));
    }
    all.emplace_back(static_cast<std::int64_t>(b), changed[b]);
    if (has_come) continue;
    progress.buffers[b] = changed[b];
    progress.changed_by[b] = stage;
  }
  return all;
}

void PipelineRunner::add_metrics(int shard, const ShardMetrics& metrics) {
  auto& own = progress_[static_cast<std::size_t>(shard)].metrics;
  own = joined(own, metrics);
}

}  // namespace tutti
