#pragma once

// Batch normalisation over the samples of all members: statistics, gradients and running statistics
// are those of the joined batch. Ioffe and Szegedy, "Batch Normalization" (2015).
//
//   auto norm = tutti::SyncBatchNorm(group, torch::nn::BatchNormOptions(64).momentum(0.01));
//
// In train() collective, as ops.h has it: all members call forward() equally often, with batches of
// any sizes, none too, and lead their losses to the result. In eval() each normalises by the
// running statistics, or without them by its own batch, and nothing is sent.
//
// Numbers of samples, means and sums of squared deviations are combined in float64 by rank (Chan,
// Golub and LeVeque, 1979): running statistics are the same bits on all members, and a large mean
// costs no digits.
//
// Weight and bias are ordinary parameters, of which every member has all, and whose gradient is
// that of its own samples: DataParallel averages them as any other.
//
// Threads: as Group. Failure: that of Group; InvalidArgument on all members where there is one
// sample per channel, or none, as torch's for one; Mismatch where channels or options differ.

#include <torch/torch.h>

#include "tutti/group.h"
#include "tutti/split_module.h"

namespace tutti {

class SyncBatchNormImpl : public torch::nn::Module, public WeightedLayer {
 public:
  /// The options of torch::nn::BatchNorm1d, 2d and 3d; a momentum of nullopt makes a cumulative
  /// average. Collective.
  SyncBatchNormImpl(const Group& group, const torch::nn::BatchNormOptions& options);

  /// [b, C, *], in the memory format of `x`. The result may be changed in place before backward; an
  /// `x` that is, where the layer is not affine, is torch's error in backward, as with its own.
  torch::Tensor forward(const torch::Tensor& x);

  const Group& group() const { return group_; }
  const torch::nn::BatchNormOptions& options() const { return options_; }

  torch::Tensor weight, bias;               ///< undefined unless affine
  torch::Tensor running_mean, running_var;  ///< undefined unless track_running_stats
  torch::Tensor num_batches_tracked;        ///< likewise

 private:
  /// Called by clone() of a torch::nn::Cloneable that has the layer: takes copies of `other`'s.
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override {
    take_copies(*this, other, device);
  }

  struct Statistics;
  void require(const torch::Tensor& x) const;
  Statistics statistics_of(const torch::Tensor& x) const;
  void track(const Statistics& all);
  torch::Tensor affine(const torch::Tensor& normal) const;

  Group group_;
  torch::nn::BatchNormOptions options_;
};

TORCH_MODULE(SyncBatchNorm);

}  // namespace tutti
