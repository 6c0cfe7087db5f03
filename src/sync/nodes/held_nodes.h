#pragma once

// The nodes that the workers of a step hold, as their boards list them.
//
// Pure functions.

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

}  // namespace tutti
