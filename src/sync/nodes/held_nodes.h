#pragma once

// The nodes that the workers of a step hold, as their boards list them.
//
// Pure functions and values.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/fold_program.h"
#include "sync/nodes/step_board.h"

namespace tutti {

/// One node of one worker, or of the workers that compute its shards together: neighbouring ranks,
/// each with a part of its parameters.
struct HeldNode {
  int worker;  ///< rank in the group; the first of several
  int row;     ///< of the worker's slot table
  Block block;
  double weight;
};

/// Nodes [begin, end) of a step.
struct NodeRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Appends the nodes of worker r, whose leaves follow the `leaves` so far.
void append_nodes(std::vector<HeldNode>& nodes, std::int64_t& leaves, int r,
                  const StepHeader& header);

/// The weights of nodes, ascending, added along the tree over `leaves`; 0 of none.
double fold_weights(std::span<const Block> blocks, std::span<const double> weights,
                    std::int64_t leaves);

/// All nodes of a step, ascending over all workers.
class HeldNodes {
 public:
  /// Takes over those of a tree over `leaves`, and adds up their weights.
  void collect(std::vector<HeldNode> nodes, std::int64_t leaves);
  /// How often collect() has found other blocks of the tree than before, or other workers of them.
  std::uint64_t shape() const { return shape_; }

  std::size_t size() const { return nodes_.size(); }
  const HeldNode* begin() const { return nodes_.data(); }
  const HeldNode* end() const { return begin() + size(); }
  const HeldNode& operator[](std::size_t n) const { return nodes_[n]; }
  NodeRange all() const { return {0, size()}; }
  std::span<const HeldNode> of(NodeRange range) const {
    return {begin() + range.begin, begin() + range.end};
  }
  /// Leaves of the step's tree.
  std::int64_t leaf_count() const { return leaf_count_; }
  /// Σ of all leaves' weights, folded along the tree.
  double weight() const { return weight_; }
  /// Σ of the weights of the leaves in these nodes; 0 without a node.
  double weight_of(NodeRange range) const;

 private:
  std::vector<HeldNode> nodes_;
  std::int64_t leaf_count_ = 0;
  double weight_ = 0;
  std::uint64_t shape_ = 0;
};

}  // namespace tutti
