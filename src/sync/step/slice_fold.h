#pragma once

// A slice owner's work: of the touched parameters of a bucket, fold its share of the elements from
// all workers' nodes, in tree order, and divide once. What becomes of the sum is the caller's
// business, or fold()'s, which stores it to every worker's arena.
//
// Threads: one. The nodes of all workers must be published.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/fold.h"
#include "kernels/fold_program.h"
#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "sync/step/step_board.h"

namespace tutti {

/// What the reduced gradient is divided by.
enum class Divisor : std::uint8_t {
  weights,       ///< Σ of all leaves' weights
  contributors,  ///< per parameter, Σ of the weights of the leaves that wrote it
  none,          ///< nothing: the weighted sum itself
};

/// One node of one worker.
struct HeldNode {
  int worker;  ///< rank in the group
  int row;     ///< of the worker's slot table
  Block block;
  double weight;
};

/// Appends what worker r handed in of its leaves, which follow the `leaves` so far.
void append_nodes(std::vector<HeldNode>& nodes, std::int64_t& leaves, int r,
                  const StepHeader& header);

/// The weights of nodes, ascending, added along the tree over `leaves`; 0 of none.
double fold_weights(std::span<const Block> blocks, std::span<const double> weights,
                    std::int64_t leaves);

/// Nodes [begin, end) of a step.
struct NodeRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class SliceFold {
 public:
  SliceFold(const Plan& plan, std::vector<std::byte*> arenas, std::vector<StepBoard> boards,
            Divisor divisor);

  /// Takes over the step's nodes, ascending over all workers, and adds up their weights. `unscaled`
  /// ones were not multiplied by them.
  void begin(std::vector<HeldNode> nodes, std::int64_t leaves, bool unscaled = false);
  std::int64_t leaves() const { return leaves_; }
  /// Σ of all leaves' weights, folded along the tree.
  double weight() const { return weight_; }

  /// A rank's share of those of the given parameters that are touched and dealt.
  std::vector<ElementRange> owned(std::span<const std::uint32_t> parameters, int rank) const;
  /// Where the nodes of a touched parameter lie, and what their sum is divided by.
  struct Sources {
    std::uint32_t parameter = 0;
    std::string pattern;  ///< '1' for every node that has the parameter
    std::vector<const std::byte*> nodes;
    double divisor = 1;
  };
  Sources sources_of(std::uint32_t parameter) const {
    return sources_of(parameter, {0, nodes_.size()});
  }
  /// Of some neighbouring nodes alone; `divisor` is of them alone where it is by contributors.
  Sources sources_of(std::uint32_t parameter, NodeRange range) const;
  std::size_t nodes() const { return nodes_.size(); }
  const std::vector<HeldNode>& held() const { return nodes_; }
  /// Σ of the weights of these nodes, folded along the tree; 0 of none.
  double weight_of(NodeRange range) const;
  /// Σ of the weights of the leaves in these nodes that wrote the parameter, folded along the tree;
  /// 0 where none did. Only by contributors.
  double contributed(std::uint32_t parameter, NodeRange range) const;
  /// Folds elements [begin, end) of it, of the node type, to destinations of `result_type`.
  void fold(const Sources& sources, std::int64_t begin, std::int64_t end, DType result_type,
            std::span<void* const> destinations);

  /// The same as a Fold without destinations, whose spans hold until the next call. At most
  /// kMaxSources nodes.
  Fold fold_of(const Sources& sources, std::int64_t begin, std::int64_t end);

  /// Folds this rank's share of the given parameters; all ranks call it with the same list, each
  /// for its own share.
  void fold(std::span<const std::uint32_t> parameters, int rank);

  bool touched(std::size_t parameter) const { return touched(parameter, {0, nodes_.size()}); }
  bool touched(std::size_t parameter, NodeRange range) const;

 private:
  void run(const std::string& pattern, Fold work);
  Fold without_program(const Sources& sources, std::int64_t begin, std::int64_t end);
  const FoldProgram& program_of(const std::string& pattern);
  std::vector<Block> present(const std::string& pattern) const;

  const Plan& plan_;
  std::vector<std::byte*> arenas_;
  std::vector<StepBoard> boards_;
  Divisor divisor_;
  std::vector<HeldNode> nodes_;
  std::int64_t leaves_ = 0;
  double weight_ = 0;
  bool unscaled_ = false;
  std::map<std::string, FoldProgram> programs_;  ///< by pattern of presence, for the nodes at hand
  std::vector<const void*> at_;                  ///< where the elements at hand lie in each node
};

}  // namespace tutti
