#pragma once

// Tensors that belong to a shard and outlive its steps: a hidden state that is carried on. A worker
// holds those of its shards: the value after the last step that was applied, and the copy that the
// step at hand works on. Checkpoints hold those of all shards; who goes on takes its own.
//
// Threads: one. Failure: InvalidArgument names the state.

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sync/plan/assignment.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

class ShardStates {
 public:
  using Init = std::function<torch::Tensor()>;
  /// This step's copy of the shard's state; `init` makes the first value.
  torch::Tensor of(std::int64_t shard, const std::string& name, const Init& init);

  /// What the step left counts, of the shards of which `counts` holds.
  void commit(const std::function<bool(std::int64_t shard)>& counts);
  /// The step at hand never was.
  void drop() { working_.clear(); }

  /// Of one shard, ascending by key: as the last step left them, and as this one's closure does.
  NamedTensors committed_of(std::int64_t shard) const { return some_of(committed_, shard); }
  NamedTensors working_of(std::int64_t shard) const { return some_of(working_, shard); }

  /// For gather_bytes.
  std::vector<std::byte> packed() const;
  /// Those of all shards, by "hidden/shard-3", ascending.
  static NamedTensors unpack(std::span<const std::vector<std::byte>> workers);
  /// Takes those of the worker's shards, and forgets all others.
  void take(const NamedTensors& states, const ShardRange& mine);
  /// InvalidArgument for a name that is not of that form, or of a shard beyond the run's.
  static void check_names(const NamedTensors& states, std::int64_t shards);

 private:
  using Key = std::string;  // "hidden/shard-3"
  using Tensors = std::map<Key, torch::Tensor>;
  static NamedTensors some_of(const Tensors& tensors, std::int64_t shard);

  Tensors committed_;
  Tensors working_;
};

}  // namespace tutti
