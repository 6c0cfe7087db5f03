#pragma once

// Sums over classes of one leaf's samples: what a softmax and its gradient are made of, for any set
// of classes. Sets are joined along the canonical tree over the pieces, so that no bit depends on
// which member has which of them.
//
// Threads: pure functions. Failure: none.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fold_program.h"

namespace tutti {

/// Of B samples a matrix [B + 1, in + 3]: row i has Σ e^{z − m}·w, Σ e^{z − m}, m = max z and Σ z
/// over the classes; the last row has Σ w. (Online normalisation: Milakov and Gimelshein 2018,
/// arXiv 1805.02867.)
struct ClassSums {
  static std::int64_t columns(std::int64_t features) { return features + 3; }
  static torch::Tensor weighted(const torch::Tensor& sums) {
    return sums.narrow(1, 0, sums.size(1) - 3);
  }
  static torch::Tensor total(const torch::Tensor& sums) { return sums.select(1, sums.size(1) - 3); }
  static torch::Tensor largest(const torch::Tensor& sums) {
    return sums.select(1, sums.size(1) - 2);
  }
  static torch::Tensor logits(const torch::Tensor& sums) {
    return sums.select(1, sums.size(1) - 1);
  }
};

/// Those of both sets of classes, in the memory of `one`.
void join(torch::Tensor& one, const torch::Tensor& other);

/// Joins what comes, in the order of leaves: what is left are the blocks of the tree that the
/// leaves make up.
class TreeCounter {
 public:
  using Join = void (*)(torch::Tensor& one, const torch::Tensor& other);
  explicit TreeCounter(Join join) : join_(join) {}
  void add(std::int64_t leaf, torch::Tensor value);
  const std::vector<Block>& blocks() const { return blocks_; }
  const std::vector<torch::Tensor>& nodes() const { return nodes_; }

 private:
  Join join_;
  std::vector<Block> blocks_;
  std::vector<torch::Tensor> nodes_;
};

/// The sums over all `pieces` of these blocks' nodes, ascending. Overwrites nodes.
torch::Tensor join_all(std::span<const Block> blocks, std::vector<torch::Tensor> nodes,
                       std::int64_t pieces);

}  // namespace tutti
