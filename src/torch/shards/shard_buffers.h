#pragma once

// A model's buffers over the shards of a step: every shard starts from those of the step's begin,
// and afterwards each is, by its rule, the mean over the shards that ran, the first such shard's,
// or what it was; one that no shard changed keeps its bytes. Of per-replica ones each logical
// worker has its own, over its own shards; between steps the model's are the first logical
// worker's.
//
// Threads: one. Failure: InvalidArgument names the buffer.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/nodes/logical_workers.h"
#include "sync/step/buffer_mean.h"
#include "sync/step/shard_board.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "torch/model/host_copies.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/keeper_board.h"
#include "tutti/trainer.h"

namespace tutti {

class ReplicaParameters;

/// A part of a step. Follows ReplicaParameters, which know the dropped logical workers.
class ShardBuffers : public StepPart {
 public:
  /// Sends rank 0's buffers to all. `first_shard` is this worker's. `keepers`, null without a
  /// pipeline, have the buffers behind the parameters; `replicas` may be null, and so is `host`
  /// where the model is on the CPU: else values are read and written in its copies. Keeps
  /// references. Collective.
  ShardBuffers(const WrappedModel& model, StepExchange& exchange, const ShardBoard& board,
               const TrainerOptions& options, std::int64_t first_shard,
               const ReplicaParameters* replicas, const KeeperBoard* keepers, HostCopies* host);

  /// Rank 0's present values become those of the step's begin; per-replica ones that were
  /// `written`, or differ from the last step's values, become those of all logical workers.
  /// Collective.
  void send_from_first_rank(const std::vector<std::uint8_t>& written = {});
  /// The same, for all logical workers' after they were filled.
  void resume() override;
  /// Throws if a buffer is not what the last step left, of that logical worker.
  void require_untouched(std::size_t logical = 0) const;

  void open(const StepFacts& step) override;
  /// Restores the logical worker's values of the step's begin.
  void restore(std::size_t logical = 0);
  /// Takes the values that a shard of that logical worker has left. The first shard that ran, of
  /// all on this worker and of the logical worker, gives the values that are not averaged.
  void take(std::size_t logical, bool is_first, bool is_first_of_logical);
  void skip();
  /// On a device: what its shards have left comes to the host once all have run.
  void bring();

  // Where several workers compute a shard, each a part of the model's layers, and several shards
  // are under way:
  /// Where the values of a shard on its way through a part lie, and how often they were written.
  struct Place {
    std::vector<torch::Tensor> memory;
    std::vector<c10::VariableVersion> versions;
  };
  /// A shard enters a part: values are those of the step's begin, but the `changed`, which parts
  /// before have left. What shards change lies in memory of the shard's own from its first change
  /// in this run on: what graphs of other shards have kept stays as it is.
  void enter(const std::vector<std::pair<std::int64_t, torch::Tensor>>& changed);
  /// Where that shard has its values, for its backward.
  Place place() const;
  void put_back(const Place& place);
  /// The values are again where they were when this object was made.
  void move_back() noexcept;
  /// Copies of the buffers that have other bytes than at the step's begin; undefined of the others.
  std::vector<torch::Tensor> changes();
  /// Takes what this worker's shards left, in their order: changes(), or nothing of a shard that
  /// did not run. Instead of take() and skip(), once all have run. `hands_in`, by buffer: this one
  /// of the workers that compute these shards gives its values, changed or not.
  void take_changes(std::span<const std::optional<std::vector<torch::Tensor>>> shards,
                    std::span<const std::uint8_t> hands_in);

  void publish() override;
  /// Sets the values after the step. Those of dropped logical workers stay; where an averaging is
  /// due, per-replica ones are made equal: means of the copies, or the first's.
  void apply(const StepFacts& step) override;
  void commit(StepFacts& step) override {
    if (host_ != nullptr) host_->report(step.report);
  }
  void drop() noexcept override;

  /// Between steps: where the model's values are for those that read or write memory, by name.
  const NamedTensors& memory() const { return buffers_; }
  /// The values that the last step left, the first logical worker's where they are per replica.
  NamedTensors tensors() const;
  /// Per-replica buffers of all logical workers but the first, named "logical.1/0.running_mean".
  NamedTensors replica_tensors() const;

 private:
  bool is_per_replica(std::size_t buffer) const { return replicas_[buffer]; }
  /// Values at the step's begin.
  const torch::Tensor& begin(std::size_t logical, std::size_t buffer) const {
    return begin_[is_per_replica(buffer) ? logical : 0][buffer];
  }
  void move(std::size_t buffer, const torch::Tensor& memory,
            const c10::VariableVersion& version) const;
  /// On a device: what the program has queued there is done, and its values are in buffers_.
  void fetch() const {
    if (host_ != nullptr) host_->fetch_buffers();
  }
  /// On a device: values of buffers_ become the model's.
  void give() const;
  /// The host's copies become the values of the step's begin, which each shard is given.
  void lay_out(std::size_t logical);
  void keep();
  void spread(std::size_t buffer);
  /// The rank among those of `first`'s shards that has changed the buffer; −1: none has.
  int keeper_of(int first, std::size_t buffer) const;
  /// Where that worker publishes its value, of that logical worker where there are several.
  std::byte* published(int rank, std::size_t logical, std::size_t buffer) const;
  using ValueOf = std::function<const void*(std::size_t buffer)>;
  void take(std::size_t logical, const ValueOf& value_of, bool is_first, bool is_first_of_logical);
  void finish(std::size_t logical, bool per_replica, int first);
  void become_one(std::size_t buffer);

  StepExchange& exchange_;
  const ShardBoard& board_;
  const ReplicaParameters* replica_parameters_;  ///< null without
  std::int64_t first_shard_;
  std::string name_;  ///< of the Trainer, in errors
  std::optional<std::chrono::milliseconds> deadline_;
  HostCopies* host_;          ///< null where the model is on the CPU
  bool is_laid_out_ = false;  ///< there, while shards run
  /// What a shard has left, there; nothing of one that did not run.
  struct Left {
    std::vector<torch::Tensor> values;
    bool is_first = false;
  };
  std::vector<std::optional<Left>> left_;
  NamedTensors buffers_;              ///< the model's, or the host's copies of them
  Place home_;                        ///< outside of shards
  std::vector<std::uint8_t> varies_;  ///< shards have values of their own
  std::vector<BufferRule> rules_;
  std::vector<bool> replicas_;
  std::vector<ShardRange> logical_;                ///< one, of all shards, without per-replica ones
  std::vector<std::vector<torch::Tensor>> begin_;  ///< per logical worker
  std::vector<std::size_t> averaged_;              ///< by rule: those of mean_, in its order
  std::unique_ptr<BufferMean> mean_;               ///< null where there are none
  /// All buffers' values, per worker and logical worker; empty without per-replica ones.
  std::optional<SharedMemory> own_firsts_;
  std::size_t own_bytes_ = 0;  ///< of one logical worker's
  int workers_per_shard_;
  const KeeperBoard* keepers_;    ///< null without a pipeline
  std::size_t first_keeper_ = 0;  ///< of buffers
};

}  // namespace tutti
