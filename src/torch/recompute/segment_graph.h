#pragma once

// What a segment of a model has left in autograd's graph.
//
// Threads: any; a graph is one thread's, but for what a backward inside of the segment has added on
// a device. Failure: InvalidArgument.

#include <torch/csrc/autograd/function.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch/recompute/written_memory.h"

namespace tutti {

/// Where gradients of a segment's inputs leave its run's graph. They are taken from its edges, and
/// it never runs but for a backward of another graph, which has come by a tensor that the segment
/// has given out otherwise than as a result: InvalidArgument.
class SegmentEntrance : public torch::autograd::Node {
 public:
  /// `next`: the edges of `inputs`, in a graph that the program goes through; empty in another.
  SegmentEntrance(std::string segment, std::vector<std::size_t> inputs,
                  torch::autograd::edge_list&& next)
      : Node(std::move(next)), segment_(std::move(segment)), inputs_(std::move(inputs)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "tutti::SegmentEntrance"; }

 private:
  std::string segment_;
  std::vector<std::size_t> inputs_;  ///< by edge
};

/// The moment before a segment runs, in the numbers of the graph's nodes.
class SegmentStart {
 public:
  SegmentStart();
  struct Found {
    /// The leaves that need a gradient and that the outputs were computed from since, each once, in
    /// the order of their finding; an output that is a leaf itself is none of them.
    std::vector<torch::Tensor> leaves;
    std::vector<c10::Device> devices;  ///< besides the CPU, on which that was computed
  };
  /// InvalidArgument where a path leaves the segment elsewhere than by `entrance`, null where no
  /// input needs a gradient: it uses a tensor that was computed before, and that is not one of its
  /// inputs. `others`: the threads of backwards inside of the segment.
  Found found(const std::vector<torch::Tensor>& outputs, const torch::autograd::Node* entrance,
              const ThreadStarts& others, const std::string& name) const;

 private:
  std::uint64_t number_;
  std::uint64_t thread_;
};

}  // namespace tutti
