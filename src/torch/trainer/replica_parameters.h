#pragma once

// The per-replica parameters of a Trainer: each logical worker's shards see its own, which are
// updated by what those shards give. Between steps the model's tensors are the first logical
// worker's.
//
// Threads: one. Failure: InvalidArgument, Unsupported.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sync/averaging/parameter_averaging.h"
#include "sync/averaging/replica_copies.h"
#include "sync/averaging/replica_update.h"
#include "sync/step/logical_workers.h"
#include "sync/update/partitioned_update.h"
#include "torch/model/wrapped_model.h"
#include "torch/trainer/shared_parameters.h"
#include "torch/trainer/value_check.h"
#include "tutti/trainer.h"

namespace tutti {

/// ‖·‖² of a dense tensor, as norms are taken.
double squares_of(const torch::Tensor& tensor);

/// What of a run is kept per logical worker besides tensors.
struct ReplicaPosition {
  /// Per logical worker and parameter: how often it was updated.
  std::vector<std::vector<std::int64_t>> updates;
  /// Per parameter: whether some copy changed since all were one. Empty without an averaging
  /// policy.
  std::vector<std::uint8_t> moved;
  /// Per logical worker: steps in succession of which its part was dropped.
  std::vector<std::int64_t> drops;
};

class ReplicaParameters {
 public:
  struct Model {
    const WrappedModel& tensors;
    const SharedModel& first;  ///< filled by rank 0
    SharedParameters& shown;
    const std::vector<int>& states;                       ///< per parameter
    const std::vector<std::vector<std::string>>& names;   ///< of them
    const std::vector<std::optional<UpdateRule>>& rules;  ///< per parameter
    /// Per parameter and state.
    const std::vector<std::vector<double>>& initial_states;
  };
  /// Keeps references, but for states, rules and initial_states. Collective.
  ReplicaParameters(StepExchange& exchange, const ShardBoard& board, const Model& model,
                    const TrainerOptions& options);

  std::size_t size() const { return copies_.size(); }
  std::size_t shown() const { return shown_now_; }
  std::size_t logical_worker_of(std::int64_t shard) const;
  /// The model's per-replica tensors are that logical worker's, until the next call.
  void show(std::size_t logical);

  /// After the shared parameters were judged: whether the step is applied, and what of it.
  void judge(std::int64_t step, double loss_scale, const Clip& clip, Verdict& verdict);
  /// Inside complete().
  void apply(double rate_factor) { update_->apply(rate_factor); }
  void commit() { update_->commit(); }
  /// Whether copies of some group of parameters become one in the step that was applied last.
  bool is_due() const { return averaging_ && averaging_->any_due(); }
  /// Logical workers whose part was dropped of the step at hand, or the last one, where it is
  /// applied.
  const std::vector<std::int64_t>& dropped() const { return dropped_; }
  /// Whether that shard's is one of them.
  bool was_dropped(std::int64_t shard) const;
  /// After a step that was applied: counts in succession what was dropped, but where that shrank
  /// the loss scale. What is to be said where a count has reached `most`; else "".
  std::string note_drops(bool shrank, std::int64_t most);

  /// [L, …], of the type in which gradients are folded; undefined if no shard touched it.
  torch::Tensor gradient(std::uint32_t parameter);
  /// ‖·‖² of the gradients of all logical workers.
  double squares();
  /// [L, …].
  torch::Tensor gather(std::size_t parameter) const;

  /// Bytes of all of them that the tensors show.
  std::vector<torch::Tensor> snapshot() const;
  /// Which of them were written to by hand since the last step, or differ from `before`.
  std::vector<std::uint8_t> written(const std::vector<torch::Tensor>& before) const;
  /// Those are everybody's now. `copy` on the one rank that copies.
  void spread(const std::vector<std::uint8_t>& written, bool copy);

  /// Of the logical workers but the first, by "logical.1/0.weight".
  NamedTensors tensors() const;
  /// What an averaging policy keeps, by "0.weight/before".
  NamedTensors kept_tensors() const;
  /// Those of the logical workers but the first.
  void add_to(ValueCheck& check) const;
  ReplicaPosition position() const;
  void restore(const ReplicaPosition& position);
  /// InvalidArgument for one of another shape.
  void check(const ReplicaPosition& position) const;

  /// Whether no parameter is shared.
  bool are_all() const { return copies_.parameters().size() == model_.parameters().size(); }
  /// Of the last step: what each logical worker sent of copies that became one.
  std::size_t averaging_bytes() const { return averaging_ ? averaging_->bytes() : 0; }
  /// Null without an averaging policy.
  const ParameterAveraging* averaging() const { return averaging_.get(); }
  /// "; …": what is kept, for a log.
  std::string text() const;

 private:
  bool took_part(std::size_t logical) const;
  torch::Tensor gradient(std::size_t logical, std::uint32_t parameter);
  torch::Tensor view(std::byte* at, std::size_t parameter) const;

  const StepExchange& exchange_;
  const WrappedModel& model_;
  SharedParameters& shown_;
  const std::vector<std::vector<std::string>>& state_names_;
  std::vector<ShardRange> logical_;
  ReplicaCopies copies_;
  std::unique_ptr<ParameterAveraging> averaging_;
  std::unique_ptr<ReplicaUpdate> update_;
  std::size_t shown_now_ = 0;
  std::vector<std::int64_t> dropped_;
  std::vector<std::string> why_;     ///< of each of them
  std::vector<std::int64_t> drops_;  ///< per logical worker, in succession
};

}  // namespace tutti
