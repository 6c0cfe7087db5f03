#pragma once

// Drop-in data parallelism: the training loop, the model and the optimizer stay as they are, and
// gradients arrive reduced over all workers.
//
//   auto job = tutti::Job::join();
//   tutti::DataParallel parallel(job, *model);
//   …
//   optimizer.zero_grad();
//   loss.backward();          // one leaf, one sync: gradients are reduced when this returns
//   optimizer.step();         // a parameter that nobody touched has no gradient: nothing moves it
//
// Every parameter's gradient after the sync is Σ w·g / Σ w over all micro-batches of all workers,
// folded along one canonical tree (docs/numerics.md), the same bytes on every worker.
//
// The model may be on a device (a GPU): docs/gpu.md has what that costs, and what is refused there.
//
// Threads: the thread that runs backward, one at a time. Failure: an error in one worker's backward
// drops that step on all workers (PeerFailed on the others), and the next step works; Mismatch,
// PeerLost and Timeout end this object. docs/errors.md has the whole list.

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/codec.h"
#include "tutti/divide.h"
#include "tutti/group.h"
#include "tutti/job.h"
#include "tutti/share.h"
#include "tutti/step_report.h"
#include "tutti/sum_engine.h"
#include "tutti/traffic.h"

namespace tutti {

/// The buffers (such as running statistics) that hold after a step.
enum class Buffers {
  /// At the end of a step, the buffers of the lowest rank that had data (a weight above 0) replace
  /// those of all.
  every_step,
  on_request,  ///< rank 0's, when sync_buffers() is called
  never,
};

/// What happens when a worker calls join() while others still have data.
enum class OutOfData {
  participate,  ///< it takes part with weight 0 until all have called join()
  stop_all,     ///< the step in which the first one calls join() is the last; stopped() turns true
};

/// How gradients are added up.
enum class Sum {
  exact,  ///< along the canonical tree: the same bits on any number of workers
  /// By an engine, in its own order: not exact over the number of workers. docs/gpu.md#which-sum
  fast,
};

struct DataParallelOptions {
  std::string name = "model";  ///< in errors and logs
  Divide divide = Divide::by_weight;
  /// Sum::fast refuses codecs, placement, row-sparse gradients and split layers (Unsupported).
  Sum sum = Sum::exact;
  /// What adds up with Sum::fast, for this group and for nobody else. Without one NCCL does for a
  /// model on CUDA (nccl_engine()); elsewhere that is InvalidArgument.
  std::shared_ptr<SumEngine> engine = {};
  Buffers buffers = Buffers::every_step;
  OutOfData out_of_data = OutOfData::participate;
  /// Elements. Gradients of at most so many join a bucket until it has more, larger ones leave
  /// alone (25 MiB of float32); the first bucket leaves earlier. Between hosts it is 2^20 at most.
  /// Only a schedule: no bit depends on it.
  std::int64_t fusion = std::int64_t{25} << 18;
  std::int64_t first_fusion = std::int64_t{1} << 18;
  /// The compression of gradients; every worker is a logical worker of its own.
  Compression compression = no_compression();
  /// Compare digests of parameters and buffers of all workers, and which modules are in train(), in
  /// steps 1, 2, 4 … 64 and in every n-th; digests at the end of join() too. 0 never.
  std::int64_t desync_check_every = 100;
  /// Parameters for which this returns true stay local: neither sent at the start nor reduced.
  std::function<bool(const std::string& name)> per_replica = {};
  /// The rank in the group, less than its size, that alone gets the gradient of a parameter, dense
  /// or row-sparse, and updates it: DataParallel::broadcast_placed(). Codecs leave it alone.
  std::function<std::optional<std::int64_t>(const std::string& name)> placement = {};
  /// Parameters whose gradients are sparse in their rows (docs/update.md), besides those of
  /// torch::nn::Embedding and EmbeddingBag with sparse(true), which are found. Only rows that some
  /// worker touched are exchanged, and their reduced gradient is a coalesced sparse tensor.
  std::function<bool(const std::string& name)> row_sparse = {};
  /// The number of the first step, for codecs that warm up, for seeds and
  /// in texts: a program that resumes from files of its own gives report().step + 1 of where it
  /// stopped, in which dropped steps count. At least 1.
  std::int64_t first_step = 1;
  /// Where the model is on a device (a GPU): while this object lives libtorch takes deterministic
  /// algorithms in the whole process, and refuses an operator that has none by its name, so that a
  /// step's gradients are the same bits in every run. False: flags stay as the program has them.
  bool deterministic = true;
  /// The longest time that a sync waits; the job's deadline if absent.
  std::optional<std::chrono::milliseconds> deadline = {};
};

struct AccumulateOptions {
  /// The number of micro-batches that this worker will run. If given, memory stays at 2·⌊log2 V⌋ +
  /// 1 gradient copies for V micro-batches over all workers; if not, workers of rank above 0 keep
  /// one copy per micro-batch.
  std::optional<std::int64_t> micro_batches = {};
  /// If given, torch's generator is seeded from (seed, step, index of the micro-batch among those
  /// of all workers) for each one, so that dropout does not depend on the number of workers, and
  /// put back afterwards. Needs micro_batches.
  std::optional<std::uint64_t> seed = {};
};

class DataParallelState;
struct SplitLayers;
class WrappedModel;

/// One step of several micro-batches. Made by DataParallel::accumulate().
class Accumulation {
 public:
  Accumulation(Accumulation&& other) noexcept;
  /// Leaving a scope that was neither finished nor unwound by an exception throws InvalidArgument.
  ~Accumulation() noexcept(false);

  /// Runs `compute` as one leaf. If it returns a tensor (a scalar loss), backward is run on it; it
  /// may instead, or before that, run any number of backwards itself: their gradients are added in
  /// call order. A leaf of weight 0 runs `compute` and contributes nothing. Weights that are
  /// neither 0 nor between 1e-15 and 1e15 are InvalidArgument: sums are in float32. An exception
  /// drops the step on all workers and is passed on.
  template <class Compute>
  void micro_batch(double weight, Compute&& compute) {
    if constexpr (std::is_void_v<std::invoke_result_t<Compute>>) {
      run(weight, [&] {
        compute();
        return torch::Tensor();
      });
    } else {
      run(weight, [&]() -> torch::Tensor { return compute(); });
    }
  }

  /// Exactly one sync: gradients are reduced over all leaves of all workers when this returns.
  void finish();

 private:
  friend class DataParallel;
  Accumulation(std::shared_ptr<DataParallelState> state, const AccumulateOptions& options);
  void run(double weight, const std::function<torch::Tensor()>& compute);

  bool is_open() const;
  void require_open(const char* what) const;

  std::shared_ptr<DataParallelState> state_;  ///< null when moved from
  std::uint64_t scope_;
  AccumulateOptions options_;
  int exceptions_at_start_;
};

/// Parameters of layers that are split over these workers (SplitModule) are found by the layer's
/// type, stay where they are, and are neither sent nor compared. Their gradients become Σ w·g / Σ w
/// as all others, with Divide::by_contributors too. Layers that are split over another group of
/// which this worker is one, as in a grid, have ordinary parameters here; a group that has some of
/// these workers and others is InvalidArgument.
///
/// Lives as long as the model is trained: gradients are each worker's own afterwards, of which the
/// next backward warns. What went wrong by then is logged at the end: no step was taken, or
/// parameters differ from those of workers that have ended theirs after the same step.
class [[nodiscard]] DataParallel {
 public:
  /// Compares the plan (names, shapes, strides, dtypes, threads) on all workers, then sends rank
  /// 0's parameters and buffers to all. Collective. `module` must outlive this object.
  [[nodiscard]] DataParallel(const Job& job, torch::nn::Module& module,
                             const DataParallelOptions& options = {});
  /// The same over a group of workers, or over named parameters.
  [[nodiscard]] DataParallel(const Group& group, torch::nn::Module& module,
                             const DataParallelOptions& options = {});
  [[nodiscard]] DataParallel(const Group& group,
                             std::vector<std::pair<std::string, torch::Tensor>> parameters,
                             const DataParallelOptions& options = {});
  /// A holder (torch::nn::Linear, TORCH_MODULE) is a pointer: pass the module itself, *model.
  template <class Contained>
  DataParallel(const Job&, const torch::nn::ModuleHolder<Contained>& pass_the_module_itself,
               const DataParallelOptions& options = {}) = delete;
  ~DataParallel();
  DataParallel(DataParallel&&) noexcept;
  DataParallel& operator=(DataParallel&&) = delete;

  /// Weight of the next backward outside a scope (default 1): samples, tokens. It has to be called
  /// before that backward where the model has split layers or operations (tutti/ops.h), which
  /// carry gradients by it. A fail() or join() instead of that backward takes it back.
  /// InvalidArgument for one that is neither 0 nor between 1e-15 and 1e15: sums are in float32.
  void next_weight(double weight);

  /// Opens a step of several micro-batches.
  [[nodiscard]] Accumulation accumulate(const AccumulateOptions& options = {});

  /// Takes part in this step with gradients that the program has set, or without any: for a worker
  /// whose backward reached no parameter (its weight still counts: next_weight()'s unless given),
  /// or that ran none (weight 0). Gradients are reduced when it returns, as after backward().
  void synchronize(std::optional<double> weight = {});

  /// Called by every worker that has no more data: see OutOfData. In each step that others still
  /// take, gradients are reduced and `update` is called, which has to do what the others do after
  /// their backward (the optimizer's step): parameters stay equal everywhere. Steps that some
  /// worker dropped are left out. `update` calls broadcast_placed() where parameters have owners.
  /// Returns the steps it answered.
  std::int64_t join(const std::function<void()>& update);
  /// With OutOfData::stop_all: true from the step on in which some worker ran out of data, until
  /// join() returns. A loop that it ends is followed by join() all the same.
  bool stopped() const;

  /// Drops this worker's step on all workers: they get PeerFailed with this text. For failures that
  /// Tutti cannot see: outside of backward() and scopes, or inside a backward before the first
  /// gradient has reached a parameter. In the handler of an exception by which a step was dropped
  /// already it does nothing, so that a handler may always call it: of the exception itself, of one
  /// that has it nested, or once after it with its text in `why`. Anywhere else it is the open
  /// step's, or the next one's, whose backward it takes the place of: a backward that follows is
  /// that of the step after. In an accumulation scope it ends the scope: what the closure of a
  /// micro-batch computes afterwards counts for nothing, and finish() is InvalidArgument.
  void fail(const std::string& why);

  /// Σ weight · value / Σ weight over the workers, added along the canonical tree over ranks in
  /// float64: the same bytes on all of them. For whatever decides about steps, rates or line
  /// searches, which has to be alike everywhere. A value of weight 0 counts for nothing, even if it
  /// is NaN; NaN where no value has a weight. A single worker's value stays as it is. Collective,
  /// between steps: who has no data has weight 0.
  /// InvalidArgument for a weight that is negative, not finite, or above 1e150.
  double mean(double value, double weight = 1) const;
  /// The mean of each element, for a tensor of floating-point numbers that is of the same shape
  /// everywhere: a new one, of its type and without a graph.
  torch::Tensor mean(const torch::Tensor& value, double weight = 1) const;

  /// Rank 0's buffers to all, now. Collective.
  void sync_buffers();

  /// The values of owned parameters that the last step touched, of row-sparse ones the touched
  /// rows, from their owners to all: after the optimizer's step. Collective. Nothing where none was
  /// touched; InvalidArgument where no parameter has an owner. A step that begins without it is
  /// InvalidArgument, and an object that ends without it logs a warning. traffic() has a line for
  /// each parameter with an owner; report(), which is of the gradients, has nothing of it.
  void broadcast_placed();

  /// Names of the parameters that some worker wrote in the last step, in registration order.
  std::vector<std::string> touched() const;
  /// The cost of the last step.
  const StepReport& report() const;
  /// The traffic of all steps.
  TrafficReport traffic() const;
  /// Bytes of gradient memory that this worker holds on the host.
  std::size_t bytes_held() const;
  const Group& group() const;

 private:
  void start(const std::function<Group()>& group_of, int workers, WrappedModel model,
             SplitLayers layers, const DataParallelOptions& options);
  DataParallelState& state() const;

  std::shared_ptr<DataParallelState> state_;  ///< null when moved from
  std::optional<std::chrono::milliseconds> deadline_ = {};
};

/// One part of a batch: the same rows of every tensor, and how many rows that is.
struct BatchPart {
  std::vector<torch::Tensor> tensors;
  double weight = 0;
};

/// Cuts tensors along dim 0 into n parts of consecutive rows; the first rows % n parts get one
/// more. Parts may be empty when n exceeds the rows. All tensors must have the same size of dim 0
/// (InvalidArgument).
std::vector<BatchPart> split(const std::vector<torch::Tensor>& batch, std::int64_t n);

}  // namespace tutti
