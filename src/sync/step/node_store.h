#pragma once

// Where the nodes of a step lie: each worker's arena, and its board, whose tables say which slot
// has a parameter's part of which node. It is the one place that knows; whoever folds asks it for
// the sources of a parameter, and reads them wherever they are.
//
//   leaves() writes this worker's │ publish() │ collect(): those of all │ sources_of() → SliceFold
//
// Threads: one. Others' nodes may be read from when they are published until the step is complete:
// the step protocol sees to that. Failure: OutOfMemory when there is no memory.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sync/plan/plan.h"
#include "sync/step/held_nodes.h"
#include "sync/step/leaf_folder.h"
#include "sync/step/step_board.h"
#include "tutti/group.h"

namespace tutti {

/// What the reduced gradient is divided by.
enum class Divisor : std::uint8_t {
  weights,       ///< Σ of all leaves' weights
  contributors,  ///< per parameter, Σ of the weights of the leaves that wrote it
  none,          ///< nothing: the weighted sum itself
};

/// Where the nodes of a touched parameter lie, and what their sum is divided by.
struct NodeSources {
  std::uint32_t parameter = 0;
  std::string pattern;  ///< '1' for every node that has the parameter
  std::vector<const std::byte*> nodes;
  double divisor = 1;
};

class NodeStore {
 public:
  struct Options {
    std::string arena_label;  ///< in errors: "gradients of …"
    std::string board_label;
    Divisor divisor = Divisor::weights;
    std::size_t modules = 0;  ///< StepBoard::modes()
    bool reports_magnitude = false;
    std::vector<std::int64_t> node_boundaries = {};  ///< LeafFolder::Options
    std::function<void(int slot)> before_slot = {};  ///< LeafFolder
    std::function<void(std::size_t parameter, std::size_t bytes)> before_list = {};
  };
  /// Collective.
  NodeStore(const Group& group, Plan plan, Options options);
  NodeStore(const NodeStore&) = delete;
  NodeStore& operator=(const NodeStore&) = delete;

  const Plan& plan() const { return plan_; }
  Divisor divisor() const { return divisor_; }
  int rank() const { return rank_; }
  int workers() const { return static_cast<int>(boards_.size()); }

  // ---- this worker's ----

  LeafFolder& leaves() { return leaves_; }
  const LeafFolder& leaves() const { return leaves_; }
  const StepBoard& board() const { return board_of(rank_); }
  /// Puts the nodes that the leaves have become on the board.
  void publish() const { publish_nodes(leaves_, board().header()); }
  /// Bytes of this worker's arena that are in use.
  std::size_t bytes_held() const {
    return plan_.held_bytes(leaves_.slots_used()) + leaves_.list_bytes();
  }

  // ---- all workers', once they are published ----

  const StepBoard& board_of(int rank) const { return boards_[static_cast<std::size_t>(rank)]; }
  std::span<const StepBoard> boards() const { return boards_; }
  /// Takes over the step's nodes, ascending over all workers, and adds up their weights. `unscaled`
  /// ones were not multiplied by them.
  void collect(std::vector<HeldNode> nodes, std::int64_t leaves, bool unscaled = false);
  /// How often collect() has found other blocks of the tree than before.
  std::uint64_t shape() const { return shape_; }

  std::span<const HeldNode> held() const { return nodes_; }
  std::size_t size() const { return nodes_.size(); }
  NodeRange all() const { return {0, nodes_.size()}; }
  /// Leaves of the step's tree.
  std::int64_t leaf_count() const { return leaf_count_; }
  /// Σ of all leaves' weights, folded along the tree.
  double weight() const { return weight_; }
  /// … of the leaves in these nodes; 0 of none.
  double weight_of(NodeRange range) const;
  /// Σ of the weights of the leaves in these nodes that wrote the parameter, folded along the tree;
  /// 0 where none did. Only by contributors.
  double contributed(std::uint32_t parameter, NodeRange range) const;
  bool touched(std::size_t parameter) const { return touched(parameter, all()); }
  bool touched(std::size_t parameter, NodeRange range) const;
  NodeSources sources_of(std::uint32_t parameter) const { return sources_of(parameter, all()); }
  /// In these neighbouring nodes alone; `divisor` counts them alone where it is by contributors.
  NodeSources sources_of(std::uint32_t parameter, NodeRange range) const;

  // ---- sums of nodes ----

  /// Where the reduced gradient of a parameter lies for that worker: the same place in every step.
  std::byte* result(int rank, std::size_t parameter) const {
    return arena_.block(rank) + plan_.parameters()[parameter].result_offset;
  }
  /// Where that worker may keep a sum of the parameter's nodes, in its node type: it may lie on the
  /// worker's own node. Until the step is complete.
  std::byte* sum_place(int rank, std::size_t parameter) const {
    return place(rank, parameter, board_of(rank).sum_slots()[parameter]);
  }
  /// This worker's place for the sum of a row-sparse parameter, with room for so many rows.
  RowRoom sum_room(std::size_t parameter, std::size_t rows) {
    return leaves_.room_for(parameter, board().sum_slots()[parameter], rows);
  }

  /// All workers' arenas: whoever keeps a view of them keeps a copy of this.
  const SharedMemory& arena() const { return arena_; }

 private:
  std::byte* place(int rank, std::size_t parameter, int slot) const {
    return arena_.block(rank) + plan_.node_place(parameter, slot);
  }
  std::uint8_t slot_of(const HeldNode& node, std::size_t parameter) const {
    return board_of(node.worker).slot_table(node.row)[parameter];
  }

  Plan plan_;
  Divisor divisor_;
  int rank_;
  SharedMemory arena_;
  SharedMemory control_;
  std::vector<StepBoard> boards_;
  LeafFolder leaves_;
  std::vector<HeldNode> nodes_;
  std::int64_t leaf_count_ = 0;
  double weight_ = 0;
  bool unscaled_ = false;
  std::uint64_t shape_ = 0;
};

}  // namespace tutti
