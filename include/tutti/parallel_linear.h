#pragma once

// A last layer that is split over workers by its classes: each has the rows of its own, and nobody
// the whole.
//
//   auto head = tutti::ParallelLinear(group, {.features = 512, .classes = 1'000'000});
//   auto mine = head->forward(features);    // all members' samples × this member's classes
//   auto logits = head->logits(features);   // this member's samples × all classes
//
// Collective, as ops.h has it: all members call forward() equally often, with batches of any sizes,
// none too, and lead their losses to the result.
//
// Threads: as Group. Failure: that of Group; InvalidArgument for options and shapes that cannot be,
// before anything is sent.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/group.h"
#include "tutti/split_module.h"

namespace tutti {

struct ParallelLinearOptions {
  std::int64_t features = 0;
  std::int64_t classes = 0;
  bool bias = true;
  /// The seed of the initial values, which are distributed as those of torch::nn::Linear and the
  /// same for any number of members; torch's generator of rank 0 draws it if absent.
  std::optional<std::uint64_t> seed = {};
  torch::ScalarType dtype = torch::kFloat32;
};

class ParallelLinearImpl : public SplitModule {
 public:
  /// Member r has rows share_of(classes, r, size()) of weight and bias, none where there are fewer
  /// classes than members. Collective: other options on another member are a Mismatch.
  ParallelLinearImpl(const Group& group, const ParallelLinearOptions& options);

  /// [b, features] of this member to [Σ b, own classes]: all members' samples, in the order of
  /// ranks. `x` gets the sum of what the members' losses give to these samples.
  torch::Tensor forward(const torch::Tensor& x);
  /// [b, features] of this member to [b, classes], as torch::nn::Linear. Each logit travels to the
  /// one member that has the sample, and its gradient back.
  torch::Tensor logits(const torch::Tensor& x);

  std::vector<SplitTensor> split_tensors() override;
  /// This member's first class.
  std::int64_t first() const { return first_; }
  const ParallelLinearOptions& options() const { return options_; }

  torch::Tensor weight;  ///< [own classes, features]
  torch::Tensor bias;    ///< [own classes]; undefined without

 private:
  torch::Tensor local(const torch::Tensor& x);
  void require(const torch::Tensor& x) const;

  ParallelLinearOptions options_;
  std::int64_t first_ = 0;
};

/// A module holder, as TORCH_MODULE makes them, that takes options in braces, too.
class ParallelLinear : public torch::nn::ModuleHolder<ParallelLinearImpl> {
 public:
  using torch::nn::ModuleHolder<ParallelLinearImpl>::ModuleHolder;
  using Impl = ParallelLinearImpl;
  ParallelLinear(const Group& group, const ParallelLinearOptions& options)
      : ModuleHolder(std::make_shared<ParallelLinearImpl>(group, options)) {}
};

}  // namespace tutti
