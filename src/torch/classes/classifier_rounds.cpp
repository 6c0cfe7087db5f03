#include "torch/classes/classifier_rounds.h"

#include <c10/util/ScopeExit.h>

#include "tutti/error.h"

namespace tutti {

void ClassifierRounds::begin_step(std::int64_t step, std::int64_t shards, Announce announce) {
  round_ = Round{.announce = std::move(announce), .number = step, .shards = shards, .shard = -1};
  ++era_;
}

void ClassifierRounds::begin_shard(std::int64_t shard) {
  round_->shard = shard;
  round_->is_called = false;
  round_->failure = nullptr;
}

void ClassifierRounds::set_backward(bool runs) {
  if (round_) round_->in_backward = runs;
}

void ClassifierRounds::end_step() {
  if (!is_step()) return;
  round_.reset();
  ++era_;
}

void ClassifierRounds::begin_evaluation(Announce announce) {
  round_ = Round{.announce = std::move(announce)};
}

void ClassifierRounds::require_turn(ClassifierUse use) {
  if (use == ClassifierUse::predict) {
    if (is_step()) throw InvalidArgument(layer_ + ": predict() in a step of a Trainer");
    return;
  }
  if (const auto alone_in = job_.alone_in(); !round_ && !alone_in.empty()) {
    throw InvalidArgument(layer_ + " in " + alone_in +
                          ", whose model does not have the layer: register_module() it there");
  }
  if (!is_step() || round_->is_joining) return;
  if (std::exchange(round_->is_called, true)) {
    throw InvalidArgument(
        layer_ +
        ": a second forward() in a shard, or one outside of a shard, in a step of a Trainer");
  }
}

void ClassifierRounds::join(const std::function<void()>& call) {
  round_->is_joining = true;
  const auto end = c10::make_scope_exit([&] {
    if (round_) round_->is_joining = false;  // a call that fails may end the round
  });
  call();
}

void ClassifierRounds::rethrow_failure() const {
  if (round_ && round_->failure) std::rethrow_exception(round_->failure);
}

}  // namespace tutti
