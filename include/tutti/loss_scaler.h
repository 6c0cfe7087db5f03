#pragma once

// Loss scaling for a loop that has its own optimizer, as torch.amp.GradScaler is in Python: small
// gradients survive 16-bit arithmetic, and a step whose gradients are not finite is left out, by
// all workers alike.
//
//   tutti::LossScaler scaler(parallel);
//   …
//   optimizer.zero_grad();
//   scaler.scale(loss).backward();        // gradients are reduced: factor times too large
//   scaler.unscale(optimizer);            // only where the loop looks at them: clipping
//   scaler.step(optimizer);               // divides them, unless it is done, and steps
//   scaler.update();                      // once, after all optimizers
//
// Trainers do that by themselves (TrainerOptions::loss_scale). docs/data_parallel.md#loss-scale
//
// Threads: one. Failure: InvalidArgument for calls in another order; those of DataParallel::mean().

#include <torch/torch.h>

#include <map>

#include "tutti/data_parallel.h"
#include "tutti/loss_scale.h"

namespace tutti {

class LossScaler {
 public:
  /// Workers decide together. Keeps a reference. InvalidArgument for numbers that make no sense.
  explicit LossScaler(const DataParallel& parallel, const LossScale& scale = dynamic_loss_scale());
  /// This worker decides for itself: one process, or an AveragedParallel between two averages.
  explicit LossScaler(const LossScale& scale);

  /// The loss times the factor, for backward(). The value of the loss itself stays what it is.
  torch::Tensor scale(const torch::Tensor& loss) const;
  /// Divides the gradients of the optimizer's parameters by the factor (by its reciprocal, which is
  /// exact for powers of two), and finds out whether all of them are finite, on all workers: what
  /// the loop does to them afterwards does not change that. Collective, as DataParallel::mean() is:
  /// in join() `update` calls it. On a device the host waits for one answer. InvalidArgument where
  /// that was done since the last update(), and for gradients in float16, in which what is divided
  /// may be 0: parameters are float32 where forward runs under autocast, or are a Trainer's.
  void unscale(torch::optim::Optimizer& optimizer);
  /// The optimizer's step with gradients that are divided (by unscale(), unless that was called),
  /// if all of them were finite; else nothing moves. Returns whether it was taken, the same on all
  /// workers. Optimizers whose step() takes a closure that runs a backward (LBFGS) compute
  /// gradients that nobody divides.
  bool step(torch::optim::Optimizer& optimizer);
  /// After all optimizers' steps of an iteration: the factor shrinks where gradients were not
  /// finite, whoever left the step out, and grows after enough others. The same on all workers.
  void update();

  double factor() const { return state_.factor; }
  /// What a program saves beside its optimizer's state, and loads again, on all workers.
  LossScaleState state() const { return state_; }
  /// InvalidArgument for a factor that this scale never has.
  void load(const LossScaleState& state);

 private:
  struct Optimizer {
    bool is_finite = false;
    bool has_stepped = false;
  };

  const DataParallel* parallel_ = nullptr;  ///< null: this worker alone
  LossScale scale_;
  LossScaleState state_;
  std::map<const torch::optim::Optimizer*, Optimizer> unscaled_;  ///< since the last update()
};

}  // namespace tutti
