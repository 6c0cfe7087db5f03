#pragma once

// What a Trainer's own classes keep, as parts of its run's state: per-replica parameters, buffers,
// shards' states, numbers of torch's optimizers.
//
// Threads: one. Failure: RunPart's.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "run/state/run_part.h"
#include "torch/model/wrapped_model.h"
#include "torch/optim/tile_optimizers.h"
#include "torch/shards/replica_parameters.h"
#include "torch/shards/shard_buffers.h"
#include "torch/shards/shard_states.h"

namespace tutti {

/// Per-replica parameters of all logical workers, and the tensors that an averaging policy keeps.
class ReplicasRunPart : public RunPart {
 public:
  /// `replicas` may be null: the checkpoint has empty lists then. Keeps a reference.
  explicit ReplicasRunPart(ReplicaParameters* replicas)
      : RunPart("per-replica parameters"), replicas_(replicas) {}
  bool is_on_hosts() const override { return replicas_ != nullptr && replicas_->differ_on_hosts(); }
  void bring() override {
    if (replicas_ != nullptr) replicas_->bring();
  }
  void list(StateTensors& tensors) const override;
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;
  void hash(Sha256& hash) const override;

 private:
  ReplicaParameters* replicas_;
};

class BuffersRunPart : public RunPart {
 public:
  /// Keeps a reference.
  explicit BuffersRunPart(const ShardBuffers& buffers) : RunPart("buffers"), buffers_(buffers) {}
  void list(StateTensors& tensors) const override;
  void hash(Sha256& hash) const override;

 private:
  const ShardBuffers& buffers_;
};

/// The states of all shards; state_sha256() leaves them out.
class ShardStatesRunPart : public RunPart {
 public:
  /// `mine` are this worker's of a run's `shards`. Keeps a reference.
  ShardStatesRunPart(ShardStates& states, std::int64_t shards, ShardRange mine)
      : RunPart("states of shards"), states_(states), shards_(shards), mine_(mine) {}
  void gather(const Gather& gather) override;
  void release() override { all_.clear(); }
  void list(StateTensors& tensors) const override;
  std::vector<std::byte> read(const Checkpoint& checkpoint) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;

 private:
  ShardStates& states_;
  std::int64_t shards_;
  ShardRange mine_;
  NamedTensors all_;  ///< of all workers, as last gathered
};

/// Numbers that torch's optimizers keep besides tensors.
class OptimizerNumbersRunPart : public RunPart {
 public:
  /// Keeps a reference.
  explicit OptimizerNumbersRunPart(TileOptimizers& optimizers)
      : RunPart("optimizer numbers"), optimizers_(optimizers) {}
  void gather(const Gather& gather) override;
  void write(nlohmann::json& state) const override;
  void check(const nlohmann::json& state) const override;
  void restore(const nlohmann::json& state, std::span<const std::byte> read) override;

 private:
  TileOptimizers& optimizers_;
  nlohmann::json all_;  ///< of all workers, as last gathered
};

}  // namespace tutti
