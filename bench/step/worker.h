#pragma once

// One rank of a step benchmark in C++: what all contestants share.

#include <torch/torch.h>

#include <functional>
#include <string>

namespace bench {

struct Arguments {
  std::string socket, model, optimizer;
};

/// Puts a way of synchronising around a model and returns what is to be called after each backward.
using Wrap = std::function<std::function<void()>(torch::nn::Module&)>;

/// Builds, wraps and trains the model as the driver asks. "steps N" is answered with the
/// nanoseconds of each step, "memory" with the bytes this process holds (proportional share) at
/// each stage of its start; for "memory" nothing may have been trained before.
void train(const Arguments& arguments, int rank, const Wrap& wrap);

}  // namespace bench
