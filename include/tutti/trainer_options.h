#pragma once

// What a Trainer is made with: the numbers that define a run, and those that decide no bit of it.
//
// Threads: values. Failure: InvalidArgument where a Trainer is made with one that makes no sense.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/averaging.h"
#include "tutti/clip.h"
#include "tutti/codec.h"
#include "tutti/divide.h"
#include "tutti/loss_scale.h"
#include "tutti/pipeline.h"
#include "tutti/sample_order.h"
#include "tutti/schedule.h"

namespace tutti {

/// The value of a buffer after a step.
enum class BufferRule : std::uint8_t {
  mean,  ///< over the shards that ran, in tree order: floating-point buffers, unless said otherwise
  first,  ///< the first shard's that ran: other buffers, unless said otherwise
  keep,   ///< no shard's: its bytes stay as they were
};

struct TrainerOptions {
  std::int64_t shards = 1;     ///< V: a property of the run
  std::uint64_t seed = 0;      ///< of data order and random numbers; two Trainers need two of them
  std::string name = "model";  ///< in errors and logs
  SampleOrder order = {};      ///< in which Shard::indices() goes through the data
  Schedule schedule = {};      ///< learning rates are multiplied by it
  /// The divisor of Σ w·g over the shards: not_at_all where losses are sums (docs/update.md). With
  /// per-replica parameters by_weight alone, InvalidArgument otherwise.
  Divide divide = Divide::by_weight;
  Clip clip = {};
  LossScale loss_scale = {};
  /// The compression of gradients.
  Compression compression = no_compression();
  /// Parameters whose gradients are sparse in their rows (docs/update.md), besides those of
  /// torch::nn::Embedding and EmbeddingBag with sparse(true), which are found. Only rows that some
  /// shard touched are exchanged, updated and decayed; no codec is applied to them.
  std::function<bool(const std::string& name)> row_sparse = {};
  /// L, a property of the run: the nodes of the tree over the shards that compress each for itself,
  /// and have per-replica parameters, 1 … shards; 0: one, on any number of hosts, or
  /// InvalidArgument where parameters are per replica. Without a codec or per-replica parameters
  /// nothing depends on it.
  std::int64_t logical_workers = 0;
  /// Parameters and buffers of which each logical worker has its own (docs/averaging.md): nothing
  /// of them is averaged. L copies per host, of the optimizer's state too.
  std::function<bool(const std::string& name)> per_replica = {};
  /// The logical worker, 0 … L−1, that alone updates the parameter: the worker that computes its
  /// first shard. The gradients of all shards reach it as they are, without a codec, and all
  /// workers read the one copy. Without a codec it decides no bit.
  std::function<std::optional<std::int64_t>(const std::string& name)> placement = {};
  /// Lets logical workers train on their own: all parameters and buffers are per replica then, and
  /// their copies are averaged when the policy is due.
  AveragingPolicyPointer averaging = {};
  /// The optimizer's state where copies are averaged.
  StateAtAveraging state_at_averaging = StateAtAveraging::keep;
  /// δ of an exponential moving average of all parameters over the steps, in (0, 1); 0: none. One
  /// more copy of them per host.
  double ema_decay = 0;
  /// For buffers of whose name the predicate holds, the first that does; InvalidArgument for a mean
  /// of integers.
  std::vector<std::pair<std::function<bool(const std::string& name)>, BufferRule>> buffers = {};
  /// Shards per unit of time of each worker, in rank order, only their ratios count; empty: equal.
  /// Decides who computes what, and no bit. With pipelines, of each of them.
  std::vector<double> speeds = {};
  /// Neighbouring workers compute each shard together, each some of the model's layers
  /// (docs/pipeline.md): steps take two closures. InvalidArgument where the group's size is no
  /// multiple of the pipeline's workers, or the schedule cannot use so many shards; Unsupported
  /// with a codec, per-replica parameters and split layers. Decides no bit; a checkpoint may be
  /// resumed with another, or without.
  std::optional<Pipeline> pipeline = {};
  /// Steps dropped in succession after which step() throws Diverged. Those that shrank a dynamic
  /// loss scale do not count.
  std::int64_t max_consecutive_drops = 10;
  /// A file for what the steps gave, as JSON lines (docs/diagnosis.md), which rank 0 writes; empty:
  /// none. Made at once, with the folders above it; one that is there and is no step log is
  /// InvalidArgument. A run that resumes from a checkpoint continues its file. Lines that cannot be
  /// written later (a full disk) are missed, with a warning.
  std::string log = {};
  /// A directory for TensorBoard, in which rank 0 writes curves of what the steps gave
  /// (docs/diagnosis.md); empty: none. Made at once, with the folders above it. A run that resumes
  /// from a checkpoint continues its curves. InvalidArgument where another Trainer writes there at
  /// this time. What cannot be written later is missed, with a warning.
  std::string tensorboard = {};
  /// Every n-th step's metrics go to the log and to TensorBoard; 0 none.
  std::int64_t metrics_every = 1;
  /// Every n-th step's SHA-256 of each tensor goes to the log: what `tutti compare` looks at. 0:
  /// none. Rank 0 reads all tensors for it; alike on all workers.
  std::int64_t hash_every = 0;
  /// Compare digests of buffers of all workers, and look whether parameters were written to behind
  /// the Trainer's back, in steps 2, 4, 8 … 64 and in every n-th; 0 never.
  std::int64_t desync_check_every = 100;
  /// In the first step, also after load(), and in every n-th, one shard in turn is computed once
  /// more by another worker (with one worker, by the same), and hashes of what it gives are
  /// compared: a difference is Mismatch on all workers, nothing has changed. 0 never. Alike on all
  /// workers; decides no bit.
  std::int64_t audit_every = 100;
  /// The most bytes of parameters, optimizer state and moving averages for one worker, where those
  /// of a host share them evenly: OutOfMemory on all where it is more, with how many workers would
  /// do. Absent: what the machine has.
  std::optional<std::uint64_t> memory_limit = {};
  /// The longest time of a wait; the job's deadline if absent.
  std::optional<std::chrono::milliseconds> deadline = {};
};

}  // namespace tutti
