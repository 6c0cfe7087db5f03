#pragma once

// Notes that the workers of a Trainer exchange in a step besides gradients: the metrics of their
// shards, how these asked for samples, which of several models the step trains, in which modes the
// modules ran, and what the program gives for the step (the schedule's factor, an order of samples,
// an averaging policy's decision). Each worker writes its notes before the step is published, and
// draws the same conclusions from the notes of all.
//
// Threads: one. Failure: InvalidArgument where the notes of the workers differ, on all of them.

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "run/data/data_order.h"
#include "sync/step/shard_board.h"
#include "sync/step/step_part.h"
#include "torch/shards/same_shards.h"
#include "tutti/group.h"
#include "tutti/metrics.h"

namespace tutti {

/// Values that every worker's program gives for itself, and that decide bits.
struct GivenByProgram {
  double rate_factor = 1;
  double loss_scale = 1;
  std::uint64_t averaging = 0;  ///< StepFacts::averaging
  DataPosition position;
  std::uint64_t order = 0;  ///< DataOrder::own_digest()
};

class StepNotes : public StepPart {
 public:
  struct Options {
    std::string name = {};      ///< of the Trainer, in errors
    std::int64_t shards = 1;    ///< of a step
    bool computes = true;       ///< this worker has some of them
    std::string schedule = {};  ///< their texts, in errors
    std::string averaging = {};
    /// So many neighbouring ranks compute the same shards, each a part of the model's layers.
    int workers_per_shard = 1;
  };

  /// Keeps references to `board`, `module` and `data`.
  StepNotes(const Group& group, ShardBoard& board, const torch::nn::Module& module,
            const DataOrder& data, Options options);

  void open(const StepFacts& step) override;
  /// InvalidArgument where an earlier shard of this worker has asked for other samples in this
  /// step.
  void require_as_before(const DataRequest& request, std::int64_t shard) const;
  /// Notes that a shard of this worker asks for samples, once require_as_before() has passed.
  void ask(const DataRequest& request, std::int64_t shard);
  /// One more shard has no data, as the worker before this one has found: nobody asks here.
  void leave_one_out() { ++board_.mine().unasked; }
  /// What the first step's shards computed: rank 0 warns where it is the same in all of them.
  SameShards& same_shards() { return same_shards_; }
  /// A shard of this worker is over.
  void add(ShardMetrics metrics) { metrics_.push_back(std::move(metrics)); }

  void publish() override;
  /// Compares the notes of all workers, and reduces the metrics.
  void judge(StepFacts& step) override;
  void end(StepFacts&) override { is_first_ = false; }

  // After judge():
  Metrics take_metrics() { return std::move(result_); }
  /// Shards that contributed, of all workers.
  std::int64_t ran() const { return ran_; }
  /// Whether some worker's program calls the halves of the step one by one.
  bool in_halves() const { return in_halves_; }
  /// Whether all do.
  bool all_in_halves() const { return all_in_halves_; }
  /// The samples that the shards of the step asked for; absent where none did.
  const std::optional<DataRequest>& request() const { return request_; }

 private:
  void require_all_asked() const;
  void warn_of_same_shards(std::span<const std::uint64_t> common) const;
  void require_same_given(std::span<const GivenByProgram> given) const;
  void require_same_modes(std::span<const std::vector<std::uint8_t>> modes) const;

  Group group_;
  ShardBoard& board_;
  const torch::nn::Module& module_;
  const DataOrder& data_;
  Options options_;
  std::int64_t step_ = 0;
  std::uint64_t active_ = 0;
  GivenByProgram given_;
  SameShards same_shards_;
  bool is_first_ = true;  ///< no step is over
  std::optional<DataRequest> request_;
  std::set<std::int64_t> asked_;       ///< shards of this worker
  std::vector<ShardMetrics> metrics_;  ///< of this worker's shards
  Metrics result_;
  std::int64_t ran_ = 0;
  bool in_halves_ = false;
  bool all_in_halves_ = false;
};

}  // namespace tutti
