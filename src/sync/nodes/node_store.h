#pragma once

// The nodes of a step: each worker's arena, and its StepBoard, whose tables map nodes and
// parameters to slots. No other class knows where nodes are: folds ask it for the sources of a
// parameter.
//
//   leaves() writes this worker's │ publish() │ collect(): those of all │ sources_of() → SliceFold
//
// Threads: one. Others' nodes may be read from when they are published until the step is complete:
// the step protocol sees to that. Failure: OutOfMemory when there is no memory.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/group_state.h"
#include "job/publish.h"
#include "sync/nodes/for_tiles.h"
#include "sync/nodes/held_nodes.h"
#include "sync/nodes/leaf_folder.h"
#include "sync/nodes/step_board.h"
#include "sync/nodes/step_memory.h"
#include "sync/plan/plan.h"
#include "tutti/group.h"

namespace tutti {

/// The divisor of the reduced gradient.
enum class Divisor : std::uint8_t {
  weights,       ///< Σ of all leaves' weights
  contributors,  ///< per parameter, Σ of the weights of the leaves that wrote it
  none,          ///< nothing: the weighted sum itself
};

/// The addresses of a touched parameter's nodes, and the divisor of their sum.
struct NodeSources {
  std::uint32_t parameter = 0;
  std::string pattern;  ///< '1' for every node that has the parameter
  std::vector<const std::byte*> nodes;
  double divisor = 1;
};

/// Whether other hosts have no use for a node of an array that begins at the given leaf of that
/// worker's. Of partitioned parameters alike on all workers.
using StaysHere = std::function<bool(const PlanEntry& parameter, int worker, std::int64_t leaf)>;

class NodeStore {
 public:
  struct Options {
    std::string arena_label;  ///< in errors: "gradients of …"
    Divisor divisor = Divisor::weights;
    std::size_t modules = 0;  ///< StepBoard::modes()
    bool reports_magnitude = false;
    std::vector<std::int64_t> node_boundaries = {};  ///< LeafFolder::Options
    /// So many neighbouring ranks have the same leaves, and no parameter of a leaf is of two.
    int workers_per_leaf = 1;
    StaysHere stays = {};
    ForTiles for_tiles = {};                         ///< of folds to memory
    std::function<void(int slot)> before_slot = {};  ///< LeafFolder
    std::function<void(std::size_t parameter, std::size_t bytes)> before_list = {};
  };
  /// Keeps a reference. Collective.
  NodeStore(StepMemory& memory, Plan plan, Options options);
  NodeStore(const NodeStore&) = delete;
  NodeStore& operator=(const NodeStore&) = delete;

  const Plan& plan() const { return plan_; }
  Divisor divisor() const { return divisor_; }
  int rank() const { return memory_.rank(); }
  /// The workers of this host, who fold everything for it.
  const Team& team() const { return team_; }
  const ForTiles& for_tiles() const { return for_tiles_; }

  // ---- this worker's ----

  /// Forgets the last step. `leaves`: LeafFolder::reset().
  void open(std::optional<std::int64_t> leaves = {});
  LeafFolder& leaves() { return leaves_; }
  const LeafFolder& leaves() const { return leaves_; }
  /// Puts the nodes that this worker's leaves become on the board, whose header has the leaves'
  /// number: in its last leaf, or after it. Nodes that are there are not written again in this
  /// step: others may read them.
  void publish();
  bool is_published() const { return is_published_; }
  /// Sends other hosts this worker's nodes, if they are published, and what their tables have of
  /// parameters that are complete, so that their sum can begin before the step is published.
  void send_entries(std::span<const std::uint32_t> parameters);
  /// Sends other hosts what this worker has published, but for what is added up between them, and
  /// for what was sent: others may be reading it.
  void send();

  // ---- all workers', once they are published ----

  int workers_per_leaf() const { return workers_per_leaf_; }
  /// The worker that has a node's gradient of the parameter; the node's first one where it is
  /// absent.
  int worker_of(const HeldNode& node, std::size_t parameter) const {
    return part_of(node, parameter).worker;
  }
  /// Which of the workers of a leaf have the parameter, counted from 0.
  int place_of(std::size_t parameter) const;

  const StepBoards& boards() const { return boards_; }
  /// Takes over the step's nodes (HeldNodes). `unscaled` ones were not multiplied by their weights.
  void collect(std::vector<HeldNode> nodes, std::int64_t leaves, bool unscaled = false);
  const HeldNodes& held() const { return held_; }
  /// Σ of the weights of the leaves in these nodes that wrote the parameter, folded along the tree;
  /// 0 where none did. Only by contributors.
  double contributed(std::uint32_t parameter, NodeRange range) const;
  bool touched(std::size_t parameter) const { return touched(parameter, held_.all()); }
  bool touched(std::size_t parameter, NodeRange range) const;
  /// Where the hosts of the group have added it up, their sum is the one source.
  NodeSources sources_of(std::uint32_t parameter) const;
  /// The sources among these neighbouring nodes alone; by contributors, `divisor` counts them alone
  /// too. Of nodes on other hosts only those that were sent are here.
  NodeSources sources_of(std::uint32_t parameter, NodeRange range) const;
  /// The same without a divisor.
  NodeSources nodes_of(std::uint32_t parameter, NodeRange range) const;

  // ---- between hosts: host_sums.h ----

  /// From now on the parameters of which `summed` is 1 are added up between hosts, in memory like
  /// a node's that begins at `sums`; so are lists of rows sent, and nodes that become messages.
  void take_sums(const std::byte* sums, std::vector<std::uint8_t> summed);
  bool is_summed(std::size_t parameter) const { return !summed_.empty() && summed_[parameter]; }
  /// The bytes that other hosts receive for a parameter in a node: of a row-sparse one its list
  /// without the length; of one that becomes messages the node where they need it. Empty where it
  /// is absent.
  std::vector<std::span<std::byte>> parts_of(const HeldNode& node, std::uint32_t parameter) const;

  // ---- sums of nodes ----

  /// The address of a parameter's reduced gradient for that worker, the same in every step.
  std::byte* result(int rank, std::size_t parameter) const {
    return arena_.block(rank) + plan_.parameters()[parameter].result_offset;
  }
  /// The same for this worker.
  std::byte* result(std::size_t parameter) const { return result(rank(), parameter); }
  /// The address at which that worker may keep a sum of the parameter's nodes, in its node type,
  /// until the step is complete. It may overlap the worker's own node.
  std::byte* sum_place(int rank, std::size_t parameter) const {
    return place(rank, parameter, boards_.of(rank).sum_slots()[parameter]);
  }
  /// This worker's place for the sum of a row-sparse parameter, with room for `rows` rows.
  RowRoom sum_room(std::size_t parameter, std::size_t rows) {
    return leaves_.room_for(parameter, boards_.mine().sum_slots()[parameter], rows);
  }

  /// All workers' arenas. Code that keeps a view of them has to keep a copy of this.
  const SharedMemory& arena() const { return arena_; }

 private:
  std::byte* place(int rank, std::size_t parameter, int slot) const {
    return arena_.block(rank) + plan_.node_place(parameter, slot);
  }
  /// Appends the published nodes; nothing where they were sent.
  void append_nodes_once(std::vector<PublishedData>& data);
  /// Appends what a node's tables have of the parameters for which `wanted` is true.
  void append_tables(std::vector<PublishedData>& data, int node,
                     const std::function<bool(std::size_t parameter)>& wanted) const;
  double divisor_of(std::uint32_t parameter, NodeRange range) const;
  /// Where a node's gradient of a parameter is: with one of the workers that have the node.
  struct Part {
    int worker = 0;
    std::uint8_t slot = kAbsent;
  };
  Part part_of(const HeldNode& node, std::size_t parameter) const;

  Plan plan_;
  Divisor divisor_;
  StepMemory& memory_;
  StaysHere stays_;
  ForTiles for_tiles_;
  int workers_per_leaf_;
  Team team_;
  SharedMemory arena_;
  StepBoards boards_;
  LeafFolder leaves_;
  bool is_published_ = false;  ///< publish() was called in this step
  bool nodes_sent_ = false;
  enum class Entry : std::uint8_t { unsent, leaving, sent };
  std::vector<Entry> entries_;  ///< by parameter: what send_entries() has done in this step
  HeldNodes held_;
  bool unscaled_ = false;
  const std::byte* sums_ = nullptr;
  std::vector<std::uint8_t> summed_;  ///< by parameter; empty: none is
};

}  // namespace tutti
