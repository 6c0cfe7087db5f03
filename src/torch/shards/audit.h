#pragma once

// The audit of a Trainer: in its first step and every n-th, one shard is computed once more by
// another worker, and hashes of what the two computations gave are compared on all workers, before
// anything changes. What the second one gives is only hashed: it decides no bit.
//
//   open: owner → saved states │ own shards: owner → done │ auditor: the shard once more │ publish
//   → compare
//
// Threads: one. Failure: Mismatch on all workers, which ends the exchange.

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/step/audit_board.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/shard_states.h"
#include "tutti/metrics.h"

namespace tutti {

class Audit : public StepPart {
 public:
  /// Keeps references. `shards` are those of each worker, `logical` those of each logical worker
  /// that has parameters of its own; `every` ≥ 1. Collective.
  Audit(StepExchange& exchange, const WrappedModel& model, const ShardStates& states,
        std::vector<ShardRange> shards, std::vector<ShardRange> logical, std::int64_t every,
        const std::string& name);

  /// Decides, once the step is open, whether it is audited. The shard's owner hands over the
  /// shard's saved state.
  void open(const StepFacts& step) override;
  /// Begins a shard of this worker, and records it where it is the audited one.
  void begin(std::int64_t shard);
  /// Returns the shard that this worker computes once more, if there is one, after this worker's
  /// own shards; its owner has then computed it. The computation is recorded, and states() are that
  /// shard's.
  std::optional<std::int64_t> begin_repetition();
  /// Whether a computation is recorded: gradient() is called for each of its gradients, then
  /// close().
  bool records() const { return recording_; }
  /// Whether the recorded computation is the second one, which has no other effect.
  bool repeats() const { return repeating_; }
  /// The shard's states in the second computation.
  ShardStates& states() { return states_; }

  /// Records the hash of a gradient before it is weighted (IncomingGradient::hash); 0: without a
  /// row the parameter is untouched.
  void gradient(std::size_t parameter, std::uint64_t hash) { gradients_[parameter] = hash; }
  /// Whether the running computation has recorded the parameter's gradient.
  bool has(std::size_t parameter) const { return gradients_[parameter] != kNone; }
  /// Records the other results of the computation; buffers are read from the model, where the shard
  /// counts.
  void close(double weight, const ShardMetrics& metrics, const NamedTensors& states);

  /// Must be called in a handler of an exception of the second computation: throws an
  /// InvalidArgument that names it, with the exception nested. Errors that end a group or this
  /// program are rethrown unchanged.
  [[noreturn]] void rethrow() const;

  void publish() override;
  /// Throws Mismatch, on all workers alike.
  void judge(StepFacts& step) override;
  void end(StepFacts&) override { is_first_ = false; }
  /// The next step is audited.
  void resume() override { is_first_ = true; }
  void drop() noexcept override;

 private:
  static constexpr std::uint64_t kNone = 0;  ///< hash of a gradient that was not written
  void record();
  bool has_copies(int worker) const;
  /// The auditor, or the owner where what the shard saved was too much to hand over.
  int second() const;
  int rank() const { return exchange_.group().rank(); }

  StepExchange& exchange_;
  const WrappedModel& model_;
  const ShardStates& kept_;  ///< of this worker's shards
  std::vector<ShardRange> shards_;
  std::vector<ShardRange> logical_;
  std::int64_t every_;
  AuditBoard board_;
  std::string name_;
  bool is_first_ = true;  ///< no step is over since the run began or continued
  bool is_due_ = false;
  AuditPair pair_;
  bool recording_ = false;
  bool repeating_ = false;
  std::vector<std::uint64_t> gradients_;  ///< by parameter, of the computation that is recorded
  ShardStates states_;
  std::vector<ShardPrint> prints_;  ///< of this worker: the first computation, then the second
};

}  // namespace tutti
