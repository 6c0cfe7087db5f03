#pragma once

// Computes this worker's shards of a step: calls their closures, runs their backwards, and hands
// their gradients to the step exchange, as leaves.
//
// Threads: one; hooks of a model on a device are called by another one, while that waits.
// Failure: what closures throw, and InvalidArgument or Unsupported for a gradient
// that cannot be taken; the step is to be dropped then.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/helper_thread.h"
#include "run/data/data_order.h"
#include "sync/plan/assignment.h"
#include "sync/step/gradient_source.h"
#include "sync/step/shard_board.h"
#include "sync/step/step_exchange.h"
#include "torch/classes/trained_classifiers.h"
#include "torch/device/device_numbers.h"
#include "torch/gradients/gradient_intake.h"
#include "torch/gradients/zero_copy_gradients.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/audit.h"
#include "torch/shards/replica_parameters.h"
#include "torch/shards/shard_buffers.h"
#include "torch/shards/shard_states.h"
#include "torch/shards/shared_parameters.h"
#include "torch/shards/step_notes.h"
#include "tutti/trainer.h"

namespace tutti {

class ShardRunner : public GradientSink, public std::enable_shared_from_this<ShardRunner> {
 public:
  /// Objects that shards are computed with; all of them outlive this object.
  struct Parts {
    const WrappedModel& model;
    StepExchange& exchange;
    SharedParameters& parameters;
    const std::vector<GradientSource*>& sources;
    ShardBoard& board;
    ShardBuffers& buffers;
    ReplicaParameters* replicas;  ///< may be null
    Audit* audit;                 ///< may be null
    ShardStates& states;
    StepNotes& notes;
    DataOrder& data;
    TrainedClassifiers* classifiers;  ///< null without
    HostCopies* host;                 ///< null where the model is on the CPU
  };
  struct Options {
    std::string name = {};  ///< of the Trainer, in errors
    std::uint64_t seed = 0;
    std::int64_t shards = 1;  ///< of a step
    ShardRange mine = {};     ///< this worker's
    bool in_stages = false;   ///< it computes a part of each of them
  };
  ShardRunner(const Parts& parts, Options options);

  /// Hooks the parameters: needs the object to be shared already.
  void attach();

  /// Step `step` is going to be tried, about `active` or, where it is null, the whole model: until
  /// run() this worker owes the others its part in split layers' calls.
  void announce(std::int64_t step, const torch::nn::Module* active);
  /// The step that comes, counted from 1, is about all parameters. They are hooked again where the
  /// program has unhooked them.
  void open(std::int64_t step, double loss_scale);
  /// Takes part in the calls of split layers without a shard, if this worker still owes it.
  void join() noexcept;
  /// The step is only about the parameters p with active[p] != 0.
  void narrow(std::vector<std::uint8_t> active) { active_ = std::move(active); }
  /// Computes this worker's shards, and once more the one that it audits.
  void run(const Trainer::Compute& compute);
  /// Whatever was computed has failed.
  void drop() noexcept;

  // ---- a shard in parts, as the stages of a pipeline compute it ----

  /// What follows is of that shard: it begins with the buffers of the step's begin.
  void enter(std::int64_t shard);
  Shard shard_of(std::int64_t index) { return {*this, index, false}; }
  /// Runs the program's code for the shard, by this worker alone. InvalidArgument where it changes
  /// a parameter.
  void run_alone(const std::function<void()>& code);
  struct Loss {
    torch::Tensor value;  ///< times the loss scale
    double weight = 0;
  };
  /// What the answer asks for, and the metric of it; nothing where it counts nothing.
  std::optional<Loss> loss_of(Shard& shard, const ShardAnswer& answer);
  ShardMetrics take_metrics(Shard& shard) { return std::move(shard.metrics_); }
  /// Takes a gradient of this worker's, or returns false to have it written to the open leaf.
  using Redirect = std::function<bool(std::size_t parameter, const torch::Tensor& value)>;
  /// Runs a backward of the shard, of which gradients may be written in place where a leaf is open.
  void backward(const std::function<void()>& run, Redirect redirect);
  void begin_leaf(double weight);
  /// Writes a gradient that was taken before.
  void write(std::size_t parameter, const torch::Tensor& value);
  void end_leaf(bool runs);

  // GradientSink
  void gradient(std::size_t parameter, const torch::Tensor& value) override;
  void accumulated(std::size_t parameter) override;
  bool owns_values() const override { return true; }

  // Called by Shard:
  std::vector<std::int64_t> indices(const DataRequest& request, std::int64_t shard);
  std::function<std::optional<std::vector<std::int64_t>>()> coming_indices(
      const DataRequest& request, std::int64_t shard) const;
  torch::Tensor state_of(std::int64_t shard, const std::string& name,
                         const ShardStates::Init& init);
  std::int64_t shard_count() const { return options_.shards; }
  std::int64_t step() const { return step_; }
  std::uint64_t seed_of(std::int64_t shard) const;

 private:
  void run_with_all(const Trainer::Compute& compute);
  void run_shard(std::int64_t index, const Trainer::Compute& compute);
  void repeat_shard(const Trainer::Compute& compute);
  ShardAnswer call(const Trainer::Compute& compute, Shard& shard);
  /// Notes the loss that it gives. InvalidArgument where there is no answer.
  void note_answer(Shard& shard, const ShardAnswer& answer);
  void note_ran(std::size_t logical);
  /// Times the loss scale.
  torch::Tensor scaled(const torch::Tensor& value) const;
  std::string where() const;
  void take_gradients(const ShardAnswer& answer);
  void run_backward(const torch::Tensor& loss);
  void hand_in(const std::vector<torch::Tensor>& gradients);
  /// The largest of the shard's gradients, and those that are not finite.
  using MagnitudeOf = std::function<double(std::size_t parameter)>;
  void note_magnitudes(GradientFacts& facts, std::int64_t shard, bool per_replica,
                       const MagnitudeOf& magnitude_of) const;
  /// What the step's shards have left on a device has come to the host when it returns.
  void bring();
  /// The second computation of a shard is running, for the audit.
  bool repeats() const { return parts_.audit != nullptr && parts_.audit->repeats(); }

  /// What bring() has to wait for of a shard on a device: numbers are places of numbers_.
  struct ToCome {
    std::int64_t shard = 0;
    ShardMetrics metrics = {};  ///< without the loss
    std::optional<std::size_t> loss = {};
    double weight = 0;
    std::map<std::size_t, std::size_t> largest = {};  ///< by parameter, of one that ran
  };

  Parts parts_;
  Options options_;
  ZeroCopyGradients zero_copy_;
  std::unique_ptr<DeviceNumbers> numbers_;  ///< null where the model is on the CPU
  std::vector<ToCome> to_come_;             ///< the last one is that of the running shard
  GradientIntake intake_;
  HookedParameters hooks_;
  std::int64_t step_ = 1;
  double loss_scale_ = 1;
  std::vector<std::uint8_t> active_;  ///< by parameter; empty: the step is about all
  std::int64_t shard_ = 0;            ///< being computed
  std::mutex hooking_;                ///< held while a gradient is taken
  ProgramThread program_;             ///< that runs the shards
  bool in_backward_ = false;          ///< of a shard
  Redirect redirect_;                 ///< while one of a pipeline runs
  bool joins_ = false;                ///< see announce()
};

}  // namespace tutti
