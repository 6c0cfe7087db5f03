#include "sync/nodes/held_nodes.h"

#include <algorithm>
#include <utility>

#include "kernels/wide_fold.h"

namespace tutti {

void append_nodes(std::vector<HeldNode>& nodes, std::int64_t& leaves, int r,
                  const StepHeader& header) {
  for (int k = 0; k < header.node_count; ++k) {
    auto block = header.nodes[k].block;
    block.begin += leaves;
    nodes.push_back({r, k, block, header.nodes[k].weight});
  }
  leaves += header.leaves;
}

double fold_weights(std::span<const Block> blocks, std::span<const double> weights,
                    std::int64_t leaves) {
  if (blocks.empty()) return 0;
  std::vector<const void*> sources;
  for (const auto& weight : weights) sources.push_back(&weight);
  double sum = 0;
  void* const to = &sum;
  wide_fold(blocks, leaves,
            {.source_type = DType::float64,
             .result_type = DType::float64,
             .sources = sources,
             .destinations = {&to, 1},
             .count = 1});
  return sum;
}

void HeldNodes::collect(std::vector<HeldNode> nodes, std::int64_t leaves) {
  const auto is_same = [](const HeldNode& a, const HeldNode& b) {
    return a.block == b.block && a.worker == b.worker;
  };
  if (leaves != leaf_count_ || !std::ranges::equal(nodes, nodes_, is_same)) ++shape_;
  nodes_ = std::move(nodes);
  leaf_count_ = leaves;
  weight_ = weight_of(all());
}

double HeldNodes::weight_of(NodeRange range) const {
  std::vector<Block> blocks;
  std::vector<double> weights;
  for (const auto& node : of(range)) {
    blocks.push_back(node.block);
    weights.push_back(node.weight);
  }
  return fold_weights(blocks, weights, leaf_count_);
}

}  // namespace tutti
