#pragma once

// Training as steps of shards: the number of workers never shows in the result.
//
//   tutti::Trainer trainer(job, *model, tutti::Adam{.lr = 3e-4}, {.shards = 8, .seed = 1});
//   trainer.step([&](tutti::Shard& shard) {
//     const auto indices = shard.indices(data.size(), 16);
//     if (indices.empty()) return shard.nothing();  // at an epoch's end
//     auto [x, y] = data.batch(indices);
//     return shard.loss(torch::cross_entropy_loss(model->forward(x), y), y.numel());
//   });
//
// A step is V shards. Which worker computes a shard decides nothing: its data and random numbers
// come from (seed, step, shard), its gradient is folded along the canonical tree over the shards,
// and the update, Σ w·g / Σ w through the optimizer's rule, is split over the workers. Parameters
// and optimizer state exist once per host, in memory that all workers share.
//
// Threads: one. Failure: an error in one worker's shard drops the step on all workers (PeerFailed
// on the others): nothing has changed, and calling step() again repeats it. A shard that depends on
// its worker is Mismatch, by the audit (TrainerOptions::audit_every). Mismatch, PeerLost and
// Timeout end this object. docs/errors.md has the whole list.

#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tutti/group.h"
#include "tutti/job.h"
#include "tutti/metrics.h"
#include "tutti/optimizer.h"
#include "tutti/step_report.h"
#include "tutti/traffic.h"
#include "tutti/trainer_options.h"

namespace tutti {

class ShardRunner;
class TrainerState;
template <class Dataset>
class ShardLoader;  // tutti/shard_loader.h

/// A closure's answer for its shard, made by Shard.
class ShardAnswer {
 public:
  /// No answer: InvalidArgument.
  ShardAnswer() = default;

 private:
  friend class Shard;
  friend class ShardRunner;
  enum class Kind { none, nothing, loss, gradients };
  Kind kind_ = Kind::none;
  torch::Tensor loss_;
  std::vector<torch::Tensor> gradients_;
  double weight_ = 0;
};

namespace detail {
template <class Answer>
constexpr void require_answer() {
  static_assert(std::is_convertible_v<Answer, ShardAnswer>,
                "a Trainer's closure answers for its shard: return shard.loss(loss, weight), "
                "shard.gradients(...) or shard.nothing()");
}
}  // namespace detail

/// One of the equal-standing pieces of a step. Torch's generator is seeded from (seed, step, index)
/// before the closure is called; the model's buffers are those of the step's begin.
class Shard {
 public:
  /// 0 … count()−1.
  std::int64_t index() const { return index_; }
  std::int64_t count() const { return count_; }
  /// Counted from 1.
  std::int64_t step() const { return step_; }
  /// For generators of the user's own: a number that depends on (seed, step, index) alone.
  std::uint64_t seed() const { return seed_; }
  /// This is the second computation of a shard, for the audit: the shard may be another worker's,
  /// and nothing of the answer counts. What is counted or kept per shard outside of the closure is
  /// to be left alone.
  bool is_audit() const { return is_audit_; }

  /// Samples of this shard, out of 0 … dataset_size−1: a permutation per epoch, every sample once
  /// (unless TrainerOptions::order says otherwise), cut into steps of count()·batch; the last step
  /// of an epoch may have shards with fewer samples or none. All shards of a step ask alike
  /// (InvalidArgument otherwise).
  std::vector<std::int64_t> indices(std::int64_t dataset_size, std::int64_t batch);
  /// Whose k-th call gives the samples of the k-th shard that this worker will compute after this
  /// one, as far as the run continues as planned: for reading ahead (tutti/shard_loader.h). Nothing
  /// once the epoch is over, and where this worker has no shards: the order of an epoch is not
  /// asked for before it begins.
  std::function<std::optional<std::vector<std::int64_t>>()> coming_indices(
      std::int64_t dataset_size, std::int64_t batch) const;

  /// A tensor of this shard's own that outlives the step: a hidden state that is carried on. What
  /// the closure leaves in it counts once the step is applied; checkpoints hold it, and it goes
  /// where the shard goes. `init` makes the first value. Change it in place, detached:
  /// `state.copy_(hidden.detach())`.
  torch::Tensor state(const std::string& name, const std::function<torch::Tensor()>& init);

  /// Recorded values are folded over all shards: StepResult::metrics.
  ShardMetrics& metrics() { return metrics_; }

  // What the closure returns counts. InvalidArgument for a second loss() or gradients(), whose
  // first would be lost: losses of several terms are added up.

  /// The gradient of this scalar counts `weight` times (samples, tokens). The Trainer runs the
  /// backward; it also records the weighted mean "loss". Weight 0 is nothing().
  /// InvalidArgument for one that is neither 0 nor between 1e-15 and 1e15: sums are in float32.
  ShardAnswer loss(const torch::Tensor& value, double weight = 1);
  /// Gradients that the user computed, in the order of the model's parameters, of which a tied one
  /// is one; an undefined one is untouched.
  ShardAnswer gradients(std::vector<torch::Tensor> gradients, double weight = 1);
  /// This shard has no data: it touches nothing and counts nothing.
  ShardAnswer nothing();

 private:
  friend class ShardRunner;
  Shard(ShardRunner& runner, std::int64_t index, bool is_audit);
  void require_first_answer(const char* call);
  ShardRunner& runner_;
  std::int64_t index_;
  std::int64_t count_;
  std::int64_t step_;
  std::uint64_t seed_;
  bool is_audit_;
  const char* answered_by_ = nullptr;  ///< the call that has made a gradient
  ShardMetrics metrics_;
};

struct SaveOptions {
  /// Checkpoints up to this step to keep, at least 1; all if absent.
  std::optional<int> keep = {};
};

struct LoadOptions {
  /// Where the newest checkpoint is damaged, take the newest good one, and log why. Corrupt where
  /// all are damaged.
  bool fall_back = false;
  /// Only checkpoints that this run has written, in this or an earlier attempt (Job::run_id()):
  /// what a restart resumes from. Others in the folder are left alone; one whose manifest cannot be
  /// read may be another run's: Corrupt, unless fall_back passes over it.
  bool of_this_run = false;
};

/// The result of a step, the same on all workers.
struct StepResult {
  std::int64_t step = 0;  ///< counted from 1
  bool applied = false;   ///< false: only counters have changed: step, data position, loss scale
  std::string dropped_because;  ///< where not applied
  /// Logical workers whose per-replica parameters were left as they were, because their gradient is
  /// not finite; where not applied, none.
  std::vector<std::int64_t> dropped_locally;
  double loss = 0;          ///< weighted mean over the shards; NaN where none gave a loss
  double weight = 0;        ///< Σ w
  bool ends_epoch = false;  ///< its shards took the last samples of an epoch
  std::int64_t shards = 0;  ///< that contributed
  /// Before clipping; with a clip by norm, where applied. All copies of per-replica parameters
  /// count.
  std::optional<double> gradient_norm;
  double rate_factor = 1;  ///< of the schedule
  double loss_scale = 1;   ///< that the step was computed with
  Metrics metrics;
  StepReport report;  ///< this worker's: what the step cost
};

class Trainer {
 public:
  /// Compares plan and options on all workers, takes rank 0's parameters and buffers, and moves the
  /// model's parameters into shared memory. InvalidArgument where parameters share memory with one
  /// another or with a buffer; Unsupported for a buffer that a checkpoint cannot hold; OutOfMemory
  /// where parameters and optimizer state do not fit. Collective.
  /// `module` must outlive this object, which leaves each worker parameters in memory of their own.
  Trainer(const Job& job, torch::nn::Module& module, const Optimizer& optimizer,
          const TrainerOptions& options = {});
  Trainer(const Group& group, torch::nn::Module& module, const Optimizer& optimizer,
          const TrainerOptions& options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) = delete;

  using Compute = std::function<ShardAnswer(Shard& shard)>;

  /// One step: `compute` is called once for each of this worker's shards, in order, and after that
  /// for the shard that this worker audits, if there is one (TrainerOptions::audit_every). It must
  /// not call anything that is collective, nor change parameters: InvalidArgument, and the step is
  /// dropped. So is a step that begins while another thread of the process is in one. Collective.
  StepResult step(const Compute& compute);
  /// Closures that answer anything else are an error when the program is compiled.
  template <class Closure, class Answer = std::invoke_result_t<const Closure&, Shard&>,
            class = std::enable_if_t<!std::is_convertible_v<Answer, ShardAnswer>>>
  StepResult step(const Closure& /*compute*/) {
    detail::require_answer<Answer>();
    return step(Compute());
  }
  /// A step of one of several models that `module` registers and that take turns
  /// (docs/how.md): while the closures run, all parameters that are not `active`'s have
  /// requires_grad(false). They are untouched: value, optimizer state and step count stay. Buffers
  /// follow their rule in either model. InvalidArgument where `active` has a parameter that is not
  /// this Trainer's, and where workers differ in what is active. Collective.
  StepResult step(const torch::nn::Module& active, const Compute& compute);
  /// A step of a Trainer with a pipeline. `inputs` gives, on the worker of the first stage, what
  /// the first layer takes of the shard, nothing where it has no data; it is copied. `loss`
  /// answers, on that of the last stage, of what the last layer gave; it is not called for a shard
  /// without data. Both may ask for shard.indices(), and record metrics by names that differ;
  /// shard.state() is Unsupported. What a layer throws is thrown on its worker, libtorch's errors
  /// as InvalidArgument that names the layer, and PeerFailed on all others: nothing has changed.
  /// Collective.
  using Inputs = std::function<TensorList(Shard& shard)>;
  using Loss = std::function<ShardAnswer(Shard& shard, const TensorList& outputs)>;
  StepResult step(const Inputs& inputs, const Loss& loss);
  /// The same two over a loader: `compute` gets (Shard&, Batch&) for each shard that has samples;
  /// the others are nothing(). Include tutti/shard_loader.h.
  template <class Dataset, class OfBatch>
  StepResult step(ShardLoader<Dataset>& loader, const OfBatch& compute);
  template <class Dataset, class OfBatch>
  StepResult step(const torch::nn::Module& active, ShardLoader<Dataset>& loader,
                  const OfBatch& compute);
  /// Such steps up to the end of this epoch; what the last one gave. `after` is called with the
  /// StepResult of each.
  template <class Dataset, class OfBatch>
  StepResult run_epoch(ShardLoader<Dataset>& loader, const OfBatch& compute,
                       const std::function<void(const StepResult& result)>& after = {});

  // The two halves of a step.
  /// Computes the shards and waits for the other workers: nothing has changed yet, on no worker,
  /// until all call apply(). Nothing but apply() can follow.
  void accumulate(const Compute& compute);
  void accumulate(const Inputs& inputs, const Loss& loss);
  /// The folded gradient Σ w·g / Σ w of a parameter (TrainerOptions::divide), before clipping;
  /// undefined if no shard touched
  /// it; sparse and coalesced where it is row-sparse. With a codec, the gradient that its messages
  /// carry; NaN where a gradient could not be encoded, for which the step is going to be dropped. A
  /// per-replica parameter's is [L, …], NaN where a logical worker's shards did not touch it.
  /// Between the halves only. Any worker may ask, alone.
  torch::Tensor gradient(const std::string& name);
  /// ‖g‖₂ of the folded gradients of all parameters.
  double gradient_norm();
  /// The update, or the drop. Collective.
  StepResult apply();

  /// Lets the program change parameters and buffers: `change` runs on rank 0 alone, between steps,
  /// and all workers continue with the values that it leaves. `change` sees the first logical
  /// worker's per-replica ones; those that it writes to are copied to all, with their optimizer
  /// state. A parameter that a closure has changed has to be written: InvalidArgument otherwise.
  /// Collective.
  void edit(const std::function<void()>& change);

  /// Computes a data set's metrics. Samples 0 … dataset_size−1 are cut into batches of `batch`
  /// consecutive ones; each is computed by one worker, and what the batches record is folded in
  /// their order: the same bytes on any number of workers. At a batch's begin the model is in
  /// eval(), and gradients are off; torch's generator is seeded from (seed, batch), and stands
  /// afterwards where it does between steps. Buffers that `compute` changes are put back after the
  /// batch; a parameter that it changes is InvalidArgument. Collective. An exception of `compute`
  /// is rethrown there, and is PeerFailed elsewhere.
  using Evaluate =
      std::function<void(const std::vector<std::int64_t>& samples, ShardMetrics& metrics)>;
  Metrics evaluate(std::int64_t dataset_size, std::int64_t batch, const Evaluate& compute);
  /// The same over a data set of torch::data, in batches of the loader's size: `compute` gets
  /// (Batch&, ShardMetrics&). Include tutti/shard_loader.h.
  template <class Dataset, class OfBatch>
  Metrics evaluate(ShardLoader<Dataset>& loader, const OfBatch& compute);
  /// A parameter's values of all logical workers, [L, …]; L = 1 where it is not per replica. Any
  /// worker may ask, alone, between steps; on several hosts all ask for a per-replica one together.
  torch::Tensor gather(const std::string& name) const;
  /// Calls `body` while the model's per-replica parameters and buffers are those of that logical
  /// worker; else they are the first one's. No step(), edit(), save() or load() inside; evaluate()
  /// where all workers call both. Any worker may ask, alone; on several hosts all do it together.
  void with_logical_worker(std::int64_t logical, const std::function<void()>& body);
  /// Calls `body` while the model's parameters are the averages of options.ema_decay
  /// (InvalidArgument without them, or before the first step). No step(), edit(), save() or load()
  /// inside. Collective.
  void with_ema(const std::function<void()>& body);

  /// Binds a variable of the program's own to the run (docs/checkpoints.md): save() writes its
  /// current value, load() puts it back, state_sha256() covers it. The variable outlives this
  /// object, and is the same on all workers: save() and the steps of desync_check_every compare,
  /// and another value is Mismatch that names the worker. A tensor is dense and on the CPU. Called
  /// alike on all workers, between steps, before load(). InvalidArgument for an empty name, or one
  /// that is kept already.
  void keep(const std::string& name, double& value);
  void keep(const std::string& name, std::int64_t& value);
  void keep(const std::string& name, std::string& value);
  void keep(const std::string& name, torch::Tensor& value);

  /// Writes all that defines the run to DIRECTORY/step-00000200/: safetensors files beside a
  /// manifest, independent of the number of workers, and returns that folder's path, when it would
  /// survive a power cut. An error (IoError for a full disk, InvalidArgument where another run is
  /// saving there) leaves the checkpoints that were there. Collective.
  std::string save(const std::string& directory, const SaveOptions& options = {});
  /// From now on SIGTERM and SIGUSR1, to whichever worker of this Trainer, do not end it: the next
  /// step() or accumulate() begins with save(directory, options) instead, and then ends the process
  /// on all of its workers, with kResumeStatus and without destructors. What the program has done
  /// since the last step is in the checkpoint: the run resumes as if it had never stopped. Another
  /// such signal, a second later, ends a worker at once, or after a save that is under way. Where
  /// the save throws, the step does, and each one after it. Another call takes another directory.
  /// InvalidArgument where another Trainer does that already, whose end would lose what this one
  /// has: Job::should_end() then, as with Trainers of some workers each. Collective.
  void save_on_signal(const std::string& directory, const SaveOptions& options = {});
  /// Resumes from the newest checkpoint of the run that has saved last in DIRECTORY; returns its
  /// step; empty where there is none. One that is damaged is Corrupt, one of another model, seed,
  /// number of shards or threads, rules (also of buffers), schedule, divide, clip, loss scale,
  /// ema_decay, codec or L is InvalidArgument with the differences; nothing has changed then.
  /// Collective.
  std::optional<std::int64_t> load(const std::string& directory, const LoadOptions& options = {});

  /// The traffic of the steps since this object was made. Any worker may ask, alone, between steps.
  TrafficReport traffic() const;
  /// Steps that are over.
  std::int64_t steps() const;
  /// Epochs that are over, of the data that shards ask for: a loop `while (trainer.epoch() < 10)`
  /// also ends where it should after load(). A step in which no shard asks for any counts to none;
  /// rank 0 warns of a loop that would not end.
  std::int64_t epoch() const;
  /// Shards [first, second) of each step are this worker's.
  std::pair<std::int64_t, std::int64_t> shards() const;
  const Group& group() const;

  /// SHA-256, in 64 hexadecimal digits, of all parameters, optimizer state, update counts,
  /// residuals, buffers and kept values: what two runs have to agree on. Any worker may ask, alone,
  /// between steps; all do it together with a ParallelCrossEntropy in the model, and on several
  /// hosts with a codec that keeps residuals, or with per-replica parameters.
  std::string state_sha256() const;

 private:
  friend class TrainerState;

  std::shared_ptr<TrainerState> state_;
};

}  // namespace tutti
