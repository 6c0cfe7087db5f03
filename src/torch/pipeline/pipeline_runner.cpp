#include "torch/pipeline/pipeline_runner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/timeline.h"
#include "comm/group_state.h"
#include "torch/shards/pipeline_settings.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Messages of a peer that wait for the compute that needs them. A way has room for more, also
/// between hosts, where a message is two.
constexpr std::size_t kMostDeferred = 2;

}  // namespace

PipelineRunner::PipelineRunner(const Parts& parts, const Pipeline& pipeline,
                               const std::string& name, ShardRange mine)
    : parts_(parts),
      pipeline_(pipeline),
      mine_(mine),
      bounds_(stage_bounds(pipeline)),
      place_(parts.group.rank() % workers_of(pipeline)),
      messages_(parts.exchange.memory(), workers_of(pipeline), name) {
  for (std::size_t p = 0; p < parts_.model.parameters().size(); ++p) {
    parameters_[parts_.model.tensor(p).unsafeGetTensorImpl()] = p;
  }
  note_shared(pipeline_.shared);
  if (mine_.count() == 0) return;
  const auto schedule = schedule_of(pipeline_, static_cast<int>(mine_.count()));
  calls_ = calls_of(schedule, place_);
  own_stages_ = schedule.stages_of(place_);
}

void PipelineRunner::note_shared(const TensorList& shared) {
  shared_.assign(parameters_.size(), 0);
  for (std::size_t k = 0; k < shared.size(); ++k) {
    const auto p = shared[k].defined() ? index_of(shared[k]) : parameters_.size();
    if (p == parameters_.size()) {
      throw InvalidArgument(
          fmt::format("Pipeline::shared: tensor {} is no parameter that this Trainer trains", k));
    }
    shared_[p] = 1;
  }
}

void PipelineRunner::drop() noexcept {
  expected_.clear();
  passages_.clear();
  outbox_.clear();
  back_outbox_.clear();
  progress_.clear();
  failed_ = nullptr;
  others_failed_ = false;
  parts_.buffers.move_back();
}

void PipelineRunner::run(const Trainer::Inputs& inputs, const Trainer::Loss& loss) {
  drop();
  inputs_ = &inputs;
  loss_ = &loss;
  bytes_before_ = messages_.bytes();
  parameter_bytes_before_ = messages_.parameter_bytes();
  progress_.resize(static_cast<std::size_t>(mine_.count()));
  for (auto& one : progress_) one.open = static_cast<int>(own_stages_.size());
  changed_.assign(parts_.model.buffers().size(), 0);
  parts_.exchange.protocol().watch_collectives(messages_.group(), [this] {
    try {
      for (const auto& one : calls_) call(one);
      for (const auto& [peer, messages] : expected_) {
        while (!messages.empty()) receive_next(peer);
      }
      messages_.finish();
    } catch (...) {
      messages_.abandon();
      throw;
    }
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
  const auto send = [&, stage = stage, shard = shard](std::map<Key, StageMessage>& from) {
    auto node = from.extract({stage, shard});
    const auto text = message_text(&from == &outbox_, stage, shard);
    if (!has_failed() && !node.empty()) {
      try {
        return messages_.send(peer, node.mapped(), text);
      } catch (const Unsupported& error) {  // before anything is sent
        failed_ = std::make_exception_ptr(Unsupported(fmt::format("{}: {}", text, error.what())));
      }
    }
    messages_.send(peer, {.state = StageMessage::State::failed}, text);
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
  const bool is_activation = next.message == &Passage::in;
  const auto& [stage, shard] = next.to;
  auto arrived = messages_.receive(
      peer, message_text(is_activation, is_activation ? stage - 1 : stage + 1, shard));
  others_failed_ = others_failed_ || arrived.state == StageMessage::State::failed;
  passages_[next.to].*next.message = std::move(arrived);
}

/// What is said in errors of a message; `stage` is the one that gives it.
std::string PipelineRunner::message_text(bool is_activation, int stage, int shard) const {
  return fmt::format("{} of stage {} in shard {}", is_activation ? "results" : "gradients", stage,
                     step_shard(shard));
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

bool PipelineRunner::has_stage(int stage) const {
  return std::ranges::find(own_stages_, stage) != own_stages_.end();
}

std::size_t PipelineRunner::index_of(const torch::Tensor& parameter) const {
  const auto found = parameters_.find(parameter.unsafeGetTensorImpl());
  return found == parameters_.end() ? parameters_.size() : found->second;
}

/// A step in which another worker has failed gets as many leaves as it was told of. A buffer is
/// handed in by the worker whose stage has changed it in some shard, and one that no stage of this
/// pipeline has changed by that of the last stage, which has seen all changes.
void PipelineRunner::hand_in() {
  std::vector<std::optional<std::vector<torch::Tensor>>> buffers;
  std::vector<std::uint8_t> hands_in(changed_.size());
  if (has_stage(pipeline_.stages - 1)) {
    for (std::size_t b = 0; b < changed_.size(); ++b) hands_in[b] = changed_[b] == 0;
  }
  for (auto& one : progress_) {
    if (has_failed() && one.open > 0) {
      parts_.runner.begin_leaf(0);
      parts_.runner.end_leaf(false);
      one.runs = false;
    }
    parts_.notes.add(std::move(one.metrics));
    auto& taken = buffers.emplace_back();
    if (!one.runs) continue;
    taken = std::move(one.buffers);
    for (std::size_t b = 0; b < taken->size(); ++b) {
      if (!(*taken)[b].defined()) continue;
      hands_in[b] = 1;
      parts_.keepers.note(parameters_.size() + b, one.changed_by[b]);
    }
  }
  parts_.buffers.take_changes(buffers, hands_in);
}

}  // namespace tutti
