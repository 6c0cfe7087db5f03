#pragma once

// The state behind a Trainer: runs this worker's shards as leaves of the step exchange, and turns
// the folded gradients of all shards into new parameters.
//
//   accumulate: shards … → publish │ wait for all │ judge
//   apply:      update own tiles, buffers, metrics │ wait for all
//
// Threads: one.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job/end_request.h"
#include "job/stepping.h"
#include "sync/step/step_part.h"
#include "torch/trainer/trainer_objects.h"
#include "tutti/trainer.h"

namespace tutti {

class TrainerState {
 public:
  TrainerState(const Group& group, torch::nn::Module& module, const Optimizer& optimizer,
               const TrainerOptions& options)
      : world_(group, module, optimizer, options) {
    run_.emplace(world_).log_start();
  }
  static TrainerState& of(Trainer& trainer) { return *trainer.state_; }

  /// What the program computes of a shard: all of it, or the two ends of a pipeline.
  struct Closures {
    Trainer::Compute whole = {};
    Trainer::Inputs inputs = {};
    Trainer::Loss loss = {};
  };
  /// `active`: the only one of several models that the step is about.
  void accumulate(const Closures& closures, bool in_halves,
                  const torch::nn::Module* active = nullptr);
  StepResult apply();
  torch::Tensor folded_gradient(const std::string& name);
  double gradient_norm();

  // Between steps.
  void edit(const std::function<void()>& change);
  void keep(const std::string& name, KeptValues::Variable variable);
  void save(const std::string& directory, const SaveOptions& options);
  void save_on_signal(const std::string& directory, const SaveOptions& options);
  std::optional<std::int64_t> load(const std::string& directory, const LoadOptions& options);
  TrainerEvaluation& evaluation() { return *own().evaluation; }
  std::string state_sha256();
  /// Makes the Run anew from the World. Nothing that the program sees of the training changes but
  /// traffic(), which starts again. Where it throws, the Trainer has ended. Collective.
  void rebuild();

  std::int64_t step() const { return own().step(); }
  TrafficReport traffic() const { return own().step_parts.traffic(); }
  std::int64_t steps() const { return own().steps; }
  std::int64_t epoch();
  const ShardRange& shards() const { return own().mine; }
  const Group& group() const { return own().group; }

 private:
  void enter_step(const torch::nn::Module* active);
  void begin_step(const Closures& closures, bool in_halves, const torch::nn::Module* active);
  void bring();
  /// Where a signal has asked for the end: saves, and does not return. Collective, with
  /// save_on_signal().
  void end_if_asked();
  void look_at_turn();
  void expect_values();
  /// The Run's state was restored, on all workers. Collective.
  void continue_from_state();
  void require_no_gradients() const;
  StepResult result_of();
  void require_fitting(const Closures& closures) const;
  void compute(const Closures& closures);
  void drop(const std::string& why) noexcept;

  TrainerObjects& own();
  const TrainerObjects& own() const { return const_cast<TrainerState*>(this)->own(); }

  TrainerWorld world_;
  std::optional<TrainerObjects> run_;
  std::vector<std::uint8_t> active_set_;  ///< which parameters that are, unless all
  struct SaveOnSignal {
    std::string directory;
    SaveOptions options;
    EndClaim claim;
  };
  std::unique_ptr<SaveOnSignal> save_on_signal_;
  bool resumes_ = false;                ///< with the next step, from a checkpoint
  std::unique_ptr<Stepping> stepping_;  ///< from a step's begin to its end
  StepFacts facts_;                     ///< of the current step, or the last one
};

}  // namespace tutti
