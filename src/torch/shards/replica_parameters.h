#pragma once

// The per-replica parameters of a Trainer. Each logical worker has a copy, which its own shards see
// and update. Between steps the model's tensors are the first logical worker's.
//
// Threads: one. Failure: InvalidArgument, Unsupported.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sync/averaging/replica_averaging.h"
#include "sync/averaging/replica_copies.h"
#include "sync/averaging/replica_update.h"
#include "sync/nodes/logical_workers.h"
#include "sync/step/step_part.h"
#include "sync/update/partitioned_update.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/shared_parameters.h"
#include "torch/shards/value_check.h"
#include "tutti/trainer.h"

namespace tutti {

/// ‖·‖² of a dense tensor, by the same sums as the norm of a gradient.
double squares_of(const torch::Tensor& tensor);

/// What a checkpoint keeps per logical worker besides tensors.
struct ReplicaPosition {
  /// Per logical worker and parameter: the number of updates.
  std::vector<std::vector<std::int64_t>> updates;
  /// AveragingRounds::moved(). Empty without an averaging policy.
  std::vector<std::uint8_t> moved;
  /// AveragingRounds::in_flight().
  std::vector<std::int64_t> in_flight;
  /// Per logical worker: how many steps in succession dropped its part.
  std::vector<std::int64_t> drops;
};

/// A part of a step. Outside of shards the first logical worker's copies are shown.
class ReplicaParameters : public StepPart {
 public:
  struct Model {
    const WrappedModel& tensors;
    const SharedModel& first;  ///< filled by rank 0
    SharedParameters& shown;
    const std::vector<int>& states;                       ///< per parameter
    const std::vector<std::vector<std::string>>& names;   ///< per parameter and state
    const std::vector<std::optional<UpdateRule>>& rules;  ///< per parameter
    /// Per parameter and state.
    const std::vector<std::vector<double>>& initial_states;
  };
  /// Keeps references, except to states, rules and initial_states. Collective.
  ReplicaParameters(StepExchange& exchange, const ShardBoard& board, const Model& model,
                    const TrainerOptions& options);

  std::size_t size() const { return copies_.size(); }
  std::size_t shown() const { return shown_now_; }
  std::size_t logical_worker_of(std::int64_t shard) const;
  /// The model's per-replica tensors show that logical worker's copies, until the next call.
  void show(std::size_t logical);

  /// After the shared parameters were judged: decides for which logical workers the step is
  /// applied, and refuses a step that would update nothing.
  void judge(StepFacts& step) override;
  void publish() override { show(0); }
  void apply(const StepFacts& step) override { update_->apply(step.rate_factor); }
  void commit(StepFacts& step) override;
  void drop() noexcept override { show(0); }
  /// Follows DropsStepPart, which knows whether the loss scale shrank: such a step is no drop of a
  /// logical worker. Too many in succession end the run.
  void end(StepFacts& step) override;
  void add_traffic(TrafficReport& report) const override;
  /// Whether some bucket is due in the current step, or was in the last one that was applied.
  bool is_due() const { return averaging_ && averaging_->any_due(); }
  /// Digest of what the averaging policy decides of `step`; 0 without one.
  std::uint64_t decision_of(std::int64_t step) const {
    return averaging_ ? averaging_->rounds().decision_of(step) : 0;
  }
  /// False for a logical worker whose part of the current step is dropped while the step is
  /// applied, or was in the last step.
  bool took_part(std::size_t logical) const;

  /// The gradients of all logical workers, [L, …], of the type in which gradients are folded;
  /// undefined if no shard touched the parameter.
  torch::Tensor gradient(std::uint32_t parameter);
  /// ‖·‖² of the gradients of all logical workers.
  double squares();
  /// On several hosts, between steps: the copies of all logical workers, or of one, are right on
  /// all hosts. Collective; nothing on one host.
  void bring();
  void bring(std::size_t logical);
  /// Means that are on their way between hosts are here. Collective; nothing where none is.
  void land() { update_->land(); }
  /// The same where rank 0 has read them, but for the first one's.
  void bring_from_first_rank();
  /// Whether some hosts have other copies than others.
  bool differ_on_hosts() const { return copies_.hosts().differ(); }
  /// The values of all logical workers, [L, …].
  torch::Tensor gather(std::size_t parameter) const;

  /// Clones of what the tensors show now.
  std::vector<torch::Tensor> snapshot() const;
  /// Per parameter: whether the program wrote to it since the last step, or its bytes differ from
  /// `before`, a snapshot that may be empty.
  std::vector<std::uint8_t> written(const std::vector<torch::Tensor>& before) const;
  /// All logical workers get the first one's copies of the written parameters. `copy` is true on
  /// the one worker of each host that copies.
  void spread(const std::vector<std::uint8_t>& written, bool copy);

  /// The copies of all logical workers but the first, by "logical.1/0.weight".
  NamedTensors tensors() const;
  /// What an averaging policy keeps, by "0.weight/before".
  NamedTensors kept_tensors() const;
  /// Whether the model's own tensors, which are the first logical worker's, are right on this host.
  bool has_first() const { return copies_.hosts().is_here(0); }
  /// Adds the copies of all logical workers but the first that are right on this host.
  void add_to(ValueCheck& check) const;
  ReplicaPosition position() const;
  void restore(const ReplicaPosition& position);
  /// Throws InvalidArgument for a position of another shape.
  void check(const ReplicaPosition& position) const;

  /// Whether no parameter is shared.
  bool are_all() const { return copies_.parameters().size() == model_.parameters().size(); }
  /// ", …": what is kept, for a log.
  std::string text() const;

 private:
  std::string note_drops(bool shrank);
  torch::Tensor gradient(std::size_t logical, std::uint32_t parameter);
  torch::Tensor view(std::byte* at, std::size_t parameter) const;

  const StepExchange& exchange_;
  const WrappedModel& model_;
  SharedParameters& shown_;
  const std::vector<std::vector<std::string>>& state_names_;
  Clip clip_;
  std::int64_t most_drops_;
  std::vector<ShardRange> logical_;
  ReplicaCopies copies_;
  std::unique_ptr<ReplicaAveraging> averaging_;
  std::unique_ptr<ReplicaUpdate> update_;
  std::size_t shown_now_ = 0;
  std::vector<std::int64_t> dropped_;
  std::vector<std::string> why_;     ///< why each of them is dropped
  std::vector<std::int64_t> drops_;  ///< ReplicaPosition::drops
};

}  // namespace tutti
