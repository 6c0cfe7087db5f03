#pragma once

// A model's buffers over the shards of a step: every shard starts from those of the step's begin,
// and afterwards each is, by its rule, the mean over the shards that ran, the first such shard's,
// or what it was.
//
// Threads: one. Failure: BadInput names the buffer.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sync/buffer_mean.h"
#include "sync/shard_board.h"
#include "sync/step_exchange.h"
#include "torch/wrapped_model.h"
#include "tutti/trainer.h"

namespace tutti {

class ShardBuffers {
 public:
  /// Sends rank 0's buffers to all. Collective.
  ShardBuffers(const WrappedModel& model, const StepExchange& exchange,
               const TrainerOptions& options);

  /// Rank 0's present values become those of the step's begin. Collective.
  void send_from_first_rank();
  /// Throws if a buffer is not what the last step left.
  void require_untouched() const;

  void open(std::int64_t first_shard);
  /// To the step's begin.
  void restore();
  /// What the shard left counts. The first one that ran on this worker gives the values that are
  /// not averaged.
  void take(bool is_first);
  void skip();
  void publish();
  /// The values after the step, once all have published.
  void finish(const ShardBoard& board);

  const NamedTensors& tensors() const { return buffers_; }

 private:
  void keep();

  const StepExchange& exchange_;
  std::optional<std::chrono::milliseconds> deadline_;
  NamedTensors buffers_;
  std::vector<torch::Tensor> begin_;   ///< values at the step's begin
  std::vector<std::size_t> averaged_;  ///< by rule
  std::vector<std::size_t> kept_;
  std::unique_ptr<BufferMean> mean_;  ///< of those; null where there are none
};

}  // namespace tutti
