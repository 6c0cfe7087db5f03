#pragma once

// One rank of a step or memory benchmark in C++: what all contestants share.

#include <torch/torch.h>

#include <functional>
#include <string>

#include "step/models.h"

namespace bench {

/// A model that is being trained in some way.
struct Training {
  /// One whole step, from forward to update.
  std::function<void()> step;
  /// Its first half: when it returns, gradients are complete and held. No step follows.
  std::function<void()> gradients;
  /// What was sent: of a Trainer bytes of all steps so far, as sent and as they would be dense, and
  /// steps; of a DataParallel the buckets of the last step. May be missing.
  std::function<std::vector<std::int64_t>()> traffic = {};
};

/// Makes a task ready to be trained; the task outlives what it returns. Called a second time, for
/// another task, when what the first call returned is gone.
using Way = std::function<Training(const Task& task)>;

/// Trains as the driver asks. "steps N" is answered with the nanoseconds of each step, "gradients"
/// runs the first half of one, "held" is answered with the bytes this process holds (proportional
/// share), "traffic" with what was sent. The model is built by the first "steps" or "gradients":
/// before, libraries are loaded and used, and there is no model.
/// With several `threads`, one process stands for as many workers: their batches are one.
void train(const std::string& socket, const std::string& model, int rank, const Way& way,
           int threads = 1);

/// Puts a way of synchronising around a model and returns what is to be called after each backward.
using Wrap = std::function<std::function<void()>(torch::nn::Module&)>;

/// torch's loop: forward on the rank's batch, backward, what `wrap` returned, the named optimizer
/// of make_update().
Way torch_loop(const std::string& optimizer, int rank, const Wrap& wrap);

}  // namespace bench
