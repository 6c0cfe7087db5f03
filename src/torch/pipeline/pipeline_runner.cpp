#include "torch/pipeline/pipeline_runner.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>

#include "base/timeline.h"
#include "comm/group_state.h"
#include "torch/shards/pipeline_settings.h"
#include "tutti/error.h"

namespace tutti {
namespace {

torch::Tensor generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const torch::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

/// Messages of a peer that wait for the compute that needs them. A way has room for more, also
/// between hosts, where a message is two.
constexpr std::size_t kMostDeferred = 2;

int workers_of(const Pipeline& pipeline) {
  return pipeline.workers == 0 ? pipeline.stages : pipeline.workers;
}

}  // namespace

PipelineRunner::PipelineRunner(const Parts& parts, const Pipeline& pipeline,
                               const std::string& name, ShardRange mine)
    : parts_(parts),
      pipeline_(pipeline),
      mine_(mine),
      bounds_(stage_bounds(pipeline)),
      place_(parts.group.rank() % workers_of(pipeline)),
      messages_(parts.group, workers_of(pipeline), name) {
  for (std::size_t p = 0; p < parts_.model.parameters().size(); ++p) {
    parameters_[parts_.model.tensor(p).unsafeGetTensorImpl()] = p;
  }
  if (mine_.count() == 0) return;
  const auto schedule = schedule_of(pipeline_, static_cast<int>(mine_.count()));
  calls_ = calls_of(schedule, place_);
  own_stages_ = schedule.stages_of(place_);
}

void PipelineRunner::drop() noexcept {
  expected_.clear();
  passages_.clear();
  outbox_.clear();
  back_outbox_.clear();
  progress_.clear();
  failed_ = nullptr;
  others_failed_ = false;
  parts_.buffers.settle();
}

void PipelineRunner::run(const Trainer::Inputs& inputs, const Trainer::Loss& loss) {
  drop();
  inputs_ = &inputs;
  loss_ = &loss;
  bytes_before_ = messages_.bytes();
  parameter_bytes_before_ = messages_.parameter_bytes();
  progress_.resize(static_cast<std::size_t>(mine_.count()));
  for (auto& one : progress_) one.open = static_cast<int>(own_stages_.size());
  parts_.exchange.watch_collectives(messages_.group(), [this] {
    for (const auto& one : calls_) call(one);
    for (const auto& [peer, messages] : expected_) {
      while (!messages.empty()) receive_next(peer);
    }
    messages_.finish();
  });
  if (const auto failed = failed_) {
    drop();
    std::rethrow_exception(failed);
  }
  hand_in();
  drop();
}

/// The first rank's peers are those of its pipeline.
void PipelineRunner::call(const PipelineCall& call) {
  const auto& [work, stage, shard] = call.action;
  const int peer = parts_.group.rank() - place_ + call.peer;
  const auto send = [&](std::map<Key, StageMessage>& from) {
    auto node = from.extract({stage, shard});
    if (has_failed() || node.empty()) {
      messages_.send(peer, {.state = StageMessage::State::failed});
    } else {
      messages_.send(peer, node.mapped());
    }
  };
  switch (call.kind) {
    case PipelineCall::Kind::compute:
      receive_up_to(call.action);
      return compute(call.action);
    case PipelineCall::Kind::send_activation:
      return send(outbox_);
    case PipelineCall::Kind::send_gradient:
      return send(back_outbox_);
    case PipelineCall::Kind::receive_activation:
      return expect(peer, {{stage + 1, shard}, &Passage::in});
    case PipelineCall::Kind::receive_gradient:
      return expect(peer, {{stage - 1, shard}, &Passage::back});
  }
}

/// What comes is received when a compute needs it, as no sender waits for its receiver, but for the
/// last few messages: a way between two workers has room for some only. As none is received later
/// than its place in the list of calls by more than that room, nobody waits for ever.
void PipelineRunner::expect(int peer, const Expected& message) {
  expected_[peer].push_back(message);
  while (expected_[peer].size() > kMostDeferred) receive_next(peer);
}

void PipelineRunner::receive_up_to(const StageAction& action) {
  const Key key{action.stage, action.micro_batch};
  const bool is_forward = action.work == StageWork::forward;
  for (auto& [peer, messages] : expected_) {
    const auto needed = [&, key = key](const Expected& one) {
      return one.to == key && (one.message == &Passage::in) == is_forward;
    };
    while (std::ranges::any_of(messages, needed)) receive_next(peer);
  }
}

void PipelineRunner::receive_next(int peer) {
  const auto next = expected_[peer].front();
  expected_[peer].pop_front();
  auto arrived = messages_.receive(peer);
  others_failed_ = others_failed_ || arrived.state == StageMessage::State::failed;
  passages_[next.to].*next.message = std::move(arrived);
}

void PipelineRunner::compute(const StageAction& action) {
  if (has_failed()) return;
  const auto name = text_of(action);
  const TimelineSpan span(parts_.group.state()->job().timeline(), name);
  try {
    if (action.work == StageWork::forward) {
      forward(action.stage, action.micro_batch);
    } else {
      backward(action);
    }
  } catch (...) {
    failed_ = std::current_exception();
  }
}

std::string PipelineRunner::where(int stage, int shard) const {
  const auto s = static_cast<std::size_t>(stage);
  return fmt::format("stage {} (layers {} to {}) in shard {}", stage, bounds_[s],
                     bounds_[s + 1] - 1, step_shard(shard));
}

std::size_t PipelineRunner::index_of(const torch::Tensor& parameter) const {
  const auto found = parameters_.find(parameter.unsafeGetTensorImpl());
  return found == parameters_.end() ? parameters_.size() : found->second;
}

// ---- forward ----

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
      set_generator_state(passage.in.generator);
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
    message.generator = generator_state();
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

void PipelineRunner::add_metrics(int shard, ShardMetrics metrics) {
  auto& own = progress_[static_cast<std::size_t>(shard)].metrics;
  auto records = own.records();
  for (const auto& record : metrics.records()) {
    if (std::ranges::any_of(records, [&](const auto& one) { return one.name == record.name; })) {
      throw InvalidArgument(fmt::format(
          "metric \"{}\" is recorded where shard {} begins and where it ends: give it two names",
          record.name, step_shard(shard)));
    }
    records.push_back(record);
  }
  own = ShardMetrics::of(std::move(records));
}

// ---- backward ----

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
    const auto redirect = [&](std::size_t parameter, const torch::Tensor& value) {
      if (passage.used_before[parameter] != 0) {
        passage.out.parameters.emplace_back(static_cast<std::int64_t>(parameter), value);
        return true;
      }
      if (!closes) progress.held.emplace_back(parameter, value);
      return !closes;
    };
    parts_.runner.backward(
        [&] {
          if (!begins) return passage.graph.backward_weights();
          const auto more = arrived_parameters(passage);
          const auto gradients = std::exchange(passage.back, {}).tensors;
          if (work == StageWork::backward) return passage.graph.backward(gradients, more);
          TensorList also;
          for (const auto& parameter : passage.graph.parameters()) {
            const auto p = index_of(parameter);
            if (p < passage.used_before.size() && passage.used_before[p] != 0) {
              also.push_back(parameter);
            }
          }
          passage.graph.backward_inputs(gradients, more, also);
        },
        redirect);
  }
  if (closes) parts_.runner.end_leaf(passage.runs);
  if (begins && stage > 0) give_back(stage, shard);
  if (finishes) passages_.erase({stage, shard});
}

/// Those of this stage's parameters; the others are an earlier stage's.
std::vector<ParameterGradient> PipelineRunner::arrived_parameters(Passage& passage) {
  std::vector<ParameterGradient> own;
  for (auto& [index, gradient] : passage.back.parameters) {
    const auto& parameter = parts_.model.tensor(static_cast<std::size_t>(index));
    const bool is_read =
        std::ranges::any_of(passage.graph.parameters(),
                            [&](const torch::Tensor& one) { return one.is_same(parameter); });
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
  message.tensors = passage.runs ? passage.graph.input_gradients() : TensorList();
  const bool stays = std::ranges::find(own_stages_, stage - 1) != own_stages_.end();
  if (stays) {
    passages_.at({stage - 1, shard}).back = std::move(message);
  } else {
    back_outbox_[{stage, shard}] = std::move(message);
  }
}

// ---- the end ----

/// A step in which another worker has failed gets as many leaves as it was told of.
void PipelineRunner::hand_in() {
  std::vector<std::optional<std::vector<torch::Tensor>>> buffers;
  for (auto& one : progress_) {
    if (has_failed() && one.open > 0) {
      parts_.runner.begin_leaf(0);
      parts_.runner.end_leaf(false);
      one.runs = false;
    }
    parts_.notes.add(std::move(one.metrics));
    auto& taken = buffers.emplace_back();
    if (one.runs) taken = std::move(one.buffers);
  }
  parts_.buffers.take_changes(buffers);
}

}  // namespace tutti
