#pragma once

// The one model of several that a step is about: the parameters of the others have
// requires_grad(false) while this object lives, and what they had afterwards.
//
// Threads: one. Failure: InvalidArgument, nothing changed.

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch/model/wrapped_model.h"

namespace tutti {

class ActiveParameters {
 public:
  /// InvalidArgument where `active` has a parameter that is not among the model's, or none.
  /// `trainer` is named in errors.
  ActiveParameters(const WrappedModel& model, const torch::nn::Module& active,
                   const std::string& trainer);
  ~ActiveParameters();
  ActiveParameters(const ActiveParameters&) = delete;
  ActiveParameters& operator=(const ActiveParameters&) = delete;

  /// Digest of the set of active parameters; never 0.
  std::uint64_t digest() const { return digest_; }
  /// For each parameter of the model, whether it is active.
  const std::vector<std::uint8_t>& set() const { return set_; }

 private:
  std::vector<torch::Tensor> frozen_;
  std::vector<std::uint8_t> set_;
  std::uint64_t digest_;
};

}  // namespace tutti
