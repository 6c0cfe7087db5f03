#pragma once

// Layers one behind another, of which segments run again in backward: as many as make a step fit
// its memory.
//
//   tutti::RecomputeSequential trunk(torch::nn::Sequential(block(), block(), …));
//   auto y = trunk->forward(x);                            // ⌈√n⌉ segments
//   const auto plan = trunk->fit(x, tutti::MemoryBudget::of_share(0.3));
//   std::cout << plan.text();                              // or as many as fit so many bytes
//
// Gradients are those of torch::nn::Sequential, byte for byte, whatever the segments (tutti/
// recompute.h), and so are the names of parameters: "0.weight".
//
// Shapes: a tensor into each layer, and one out. Threads: one. Failure: that of recompute().

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/memory_plan.h"

namespace tutti {

struct RecomputeSequentialOptions {
  /// Segments run again; they have about equal numbers of layers. 0: ⌈√n⌉ of n layers.
  std::int64_t segments = 0;
  std::string name = "layers";  ///< in errors
};

class RecomputeSequentialImpl : public torch::nn::Module {
 public:
  /// InvalidArgument for a number of segments that is negative or more than that of layers.
  explicit RecomputeSequentialImpl(torch::nn::Sequential layers,
                                   const RecomputeSequentialOptions& options = {});

  torch::Tensor forward(const torch::Tensor& x);

  const std::vector<MemorySegment>& segments() const { return segments_; }
  /// InvalidArgument where they do not follow one another from the first layer to the last.
  void set_segments(std::vector<MemorySegment> segments);

  /// Measures what each layer keeps and takes of a batch like `sample`, chooses the segments that
  /// cost the least time within the budget, measures a step with them, and takes them. Layers that
  /// change their input in place stay with the layer before them. The peak that was measured is at
  /// most the budget. InvalidArgument, with the least that was reached, for a budget that cannot be
  /// met, for a first layer that changes its input in place, and where a Trainer or a DataParallel
  /// has the parameters: fit before one is made. Unsupported for layers or a sample on a device,
  /// whose bytes and times it does not measure. Takes some forwards and backwards, and as much
  /// memory as the plain run; parameters, gradients, buffers and random numbers are afterwards what
  /// they were. Which segments are chosen depends on times that were measured, and may differ from
  /// worker to worker, which no gradient shows.
  MemoryPlan fit(const torch::Tensor& sample, MemoryBudget budget);

 private:
  /// Called by clone() of a torch::nn::Cloneable that has the layer: takes clones of `other`'s
  /// layers, and its segments.
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
  torch::Tensor run(const torch::Tensor& x, std::int64_t first, std::int64_t last);
  std::vector<LayerMemory> look_through(const torch::Tensor& sample);
  std::vector<LayerMemory> measure_layers(const torch::Tensor& sample);
  /// The measured peak of a step with these segments.
  std::uint64_t measure_step(const torch::Tensor& sample,
                             const std::vector<MemorySegment>& segments);

  std::string name_;
  torch::nn::Sequential layers_;
  std::vector<MemorySegment> segments_;
};
TORCH_MODULE(RecomputeSequential);

}  // namespace tutti
