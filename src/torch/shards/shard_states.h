#pragma once

// Tensors that belong to a shard and outlive its steps, such as a hidden state. A worker has those
// of its shards: the value after the last applied step, and the copy that the current step works
// on. Checkpoints contain those of all shards; each worker of a resumed run takes those of its
// shards.
//
// Threads: one. Failure: InvalidArgument names the state.

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sync/plan/assignment.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

class ShardStates {
 public:
  using Init = std::function<torch::Tensor()>;
  /// The model is on `device`, and a state there or on the CPU.
  explicit ShardStates(c10::Device device = c10::kCPU) : device_(device) {}

  /// This step's copy of the shard's state; `init` makes the first value.
  torch::Tensor of(std::int64_t shard, const std::string& name, const Init& init);

  /// Commits the working copies of the shards for which `counts` returns true.
  void commit(const std::function<bool(std::int64_t shard)>& counts);
  /// Forgets the working copies of the current step.
  void drop() { working_.clear(); }

  /// The states of one shard, ascending by key: as the last step left them, and as the current
  /// closure leaves them.
  NamedTensors committed_of(std::int64_t shard) const { return some_of(committed_, shard); }
  NamedTensors working_of(std::int64_t shard) const { return some_of(working_, shard); }

  /// The committed states as bytes, for gather_bytes.
  std::vector<std::byte> packed() const;
  /// The states of all shards, named "hidden/shard-3", ascending.
  static NamedTensors unpack(std::span<const std::vector<std::byte>> workers);
  /// Takes those of the worker's shards, which were packed, and forgets all others. Each is on the
  /// device on which its first value is made.
  void take(const NamedTensors& states, const ShardRange& mine);
  /// InvalidArgument for a name that is not of that form, or of a shard beyond the run's.
  static void check_names(const NamedTensors& states, std::int64_t shards);

 private:
  using Key = std::string;  // "hidden/shard-3"
  using Tensors = std::map<Key, torch::Tensor>;
  static NamedTensors some_of(const Tensors& tensors, std::int64_t shard);

  torch::Tensor moved(const torch::Tensor& value, const Init& init) const;

  c10::Device device_;
  Tensors committed_;
  Tensors working_;
  std::set<Key> packed_;  ///< committed ones that came as bytes, and are on the CPU for that
};

}  // namespace tutti
