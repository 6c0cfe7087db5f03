#pragma once

// What a segment of a model has left in autograd's graph.
//
// Threads: any; a graph is one thread's. Failure: InvalidArgument.

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

/// The moment before a segment runs, in the numbers of the graph's nodes.
class SegmentStart {
 public:
  SegmentStart();
  /// The leaves that need a gradient and that `outputs` were computed from since, besides `inputs`,
  /// each once, in the order of their finding; an output that is a leaf itself
  /// is none of them. InvalidArgument where a path leaves the segment: it uses a tensor that was
  /// computed before, and that is not one of its inputs.
  std::vector<torch::Tensor> leaves(const std::vector<torch::Tensor>& outputs,
                                    const std::vector<torch::Tensor>& inputs,
                                    const std::string& name) const;

 private:
  std::uint64_t number_;
  std::uint64_t thread_;
};

}  // namespace tutti
