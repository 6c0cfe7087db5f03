#pragma once

// Results of a segment that share memory with one another, or with an input.
//
// Autograd carries a change in place on to the views of what is changed. A segment's results are no
// views of one another, but ends of the segment's node: a change of one would be in the values of
// the other and not in its gradient.
//
// Threads: any. Failure: InvalidArgument.

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

/// Whether a change in place of what `result` shares memory with may give it a gradient: it needs
/// one, or is a view of what does.
bool is_in_graph(const torch::Tensor& result);

class ResultMemory {
 public:
  /// Keeps the versions of those of `results` that share memory, and none of the memory.
  ResultMemory(const std::vector<torch::Tensor>& results, const std::vector<torch::Tensor>& inputs);
  /// InvalidArgument where one of them was changed in place since; `name` is the segment's.
  void require_unchanged(const std::string& name) const;

 private:
  struct Watched {
    std::string why;
    c10::VariableVersion counter;
    std::uint32_t version;
  };
  std::vector<Watched> watched_;
};

}  // namespace tutti
