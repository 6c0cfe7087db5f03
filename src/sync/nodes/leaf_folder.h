#pragma once

// One worker's side of a step: takes the gradients of its leaves as they come and folds them with a
// binary counter, so that what is left are nodes of the canonical tree over all leaves of the step.
//
// The worker's first leaf need not be known at once (it depends on how many leaves the workers
// before it have). Until set_start() is called, leaves are kept apart; the result is the same.
//
// A parameter that no leaf wrote is absent from a node: nothing is stored, added or sent for it. Of
// a row-sparse one the same holds row by row (row_list.h).
//
// Threads: one. The arena and the tables are read by other workers after the step was published.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sync/nodes/step_board.h"
#include "sync/plan/plan.h"
#include "sync/plan/row_list.h"

namespace tutti {

/// Slots that were lent: bit s of a parameter's mask is set while its slot s is on loan. Outlives
/// the folder with the last loan.
using LentSlots = std::vector<std::atomic<std::uint64_t>>;

/// A parameter's place in a slot, in which a gradient may be created. Only the holder of the loan
/// may write there until the loan ends, on any thread.
class SlotLoan {
 public:
  SlotLoan(std::shared_ptr<LentSlots> lent, std::size_t parameter, int slot, std::byte* at)
      : lent_(std::move(lent)), parameter_(parameter), bit_(std::uint64_t{1} << slot), at_(at) {
    (*lent_)[parameter_].fetch_or(bit_, std::memory_order_acquire);
  }
  ~SlotLoan() { (*lent_)[parameter_].fetch_and(~bit_, std::memory_order_release); }
  SlotLoan(const SlotLoan&) = delete;
  SlotLoan& operator=(const SlotLoan&) = delete;
  std::byte* at() const { return at_; }

 private:
  std::shared_ptr<LentSlots> lent_;
  std::size_t parameter_;
  std::uint64_t bit_;
  std::byte* at_;
};

/// Holds the nodes of a worker while its leaves are folded, where that is not the arena: a device
/// does. `gradient` is then what that takes for one.
class NodesElsewhere {
 public:
  virtual ~NodesElsewhere() = default;
  /// A step begins: there are no nodes.
  virtual void reset() = 0;
  /// weight · gradient becomes a node. `may_stay`: nothing else holds the gradient's memory.
  virtual void set(std::size_t parameter, std::uint8_t slot, const void* gradient, double weight,
                   bool may_stay) = 0;
  /// weight · gradient is added to a node, from its right.
  virtual void add(std::size_t parameter, std::uint8_t slot, const void* gradient,
                   double weight) = 0;
  /// So is a node, which is gone then.
  virtual void add_node(std::size_t parameter, std::uint8_t left, std::uint8_t right) = 0;
  /// Whether it is a node that has not left.
  virtual bool holds(std::size_t parameter, std::uint8_t slot) const = 0;
  /// Nothing is added to a node any more, which begins its way to `to`, its place in the arena.
  /// `completes`: the parameter has no other one in the step that is still to leave. Returns
  /// whether the host need not move it once more.
  virtual bool leave(std::size_t parameter, std::uint8_t slot, std::byte* to, bool completes) = 0;
};

class LeafFolder {
 public:
  struct Options {
    bool per_parameter_weights = false;  ///< the board's weights() are kept as well
    bool reports_magnitude = false;      ///< magnitude() is known
    /// No node reaches from one side of such a leaf's begin to the other: ascending.
    std::vector<std::int64_t> node_boundaries = {};
  };
  /// `arena` has room for kMaxSlots slots of the plan. `before_slot(s)` is called before slot s ≥ 1
  /// is used for the first time, and may throw to refuse the memory; `before_list(p, bytes)` before
  /// `bytes` more are used for rows of parameter p.
  LeafFolder(const Plan& plan, std::byte* arena, StepBoard board, const Options& options,
             std::function<void(int)> before_slot,
             std::function<void(std::size_t, std::size_t)> before_list = {});

  /// From now on nodes are folded there, and come to the arena when they are complete; row-sparse
  /// ones, magnitude() and lend() there are not. Null: in the arena.
  void fold_in(NodesElsewhere* nodes) { elsewhere_ = nodes; }
  bool folds_elsewhere() const { return elsewhere_ != nullptr; }
  /// Forgets the last step. `leaves`: this worker's in the one that comes, where they are known.
  void reset(std::optional<std::int64_t> leaves = {});
  /// Index of this worker's first leaf among all. Folds what could not be folded before.
  void set_start(std::int64_t first_leaf);

  /// Starts a leaf. A leaf of weight 0 writes nothing.
  void begin_leaf(double weight);
  /// Adds the leaf's gradient of one parameter, in the plan's layout, to what this leaf wrote
  /// before. With `last`, this leaf writes the parameter no more, and it is folded while hot; with
  /// `may_stay`, a gradient in a place that lend() gave stays there as its node: the folder then
  /// owns it, and the caller must not keep it. Where `gradient` is null, its values are elsewhere:
  /// that there is one is noted.
  void write(std::size_t parameter, const void* gradient, bool last, bool may_stay = false);
  /// The same for a row-sparse one; without a row it stays absent.
  void write(std::size_t parameter, const RowEntries& entries, bool last);
  void end_leaf();
  /// Once all leaves have ended and their place is known: nodes that are elsewhere leave.
  void let_all_leave();
  /// Puts the slots for sums on the board, once all leaves have ended: slots that are not lent and,
  /// for row-sparse parameters, that contain no node of this worker.
  void place_sums();
  /// Lends a free slot among those that this parameter has used before; null if there is none, or
  /// if two are lent. Its bytes stay until the next step that reset() begins.
  std::unique_ptr<SlotLoan> lend(std::size_t parameter);

  bool in_leaf() const { return in_leaf_; }
  /// The weight of the open leaf, or of the last one.
  double weight() const { return weight_; }
  /// Of the last leaf, which has ended: the largest magnitude among weight · gradient, not finite
  /// if one of them is not; 0 where it wrote none, and without Options::reports_magnitude.
  double magnitude(std::size_t parameter) const {
    return magnitudes_.empty() ? 0 : magnitudes_[parameter];
  }
  /// Leaves that have ended.
  std::int64_t leaves() const { return leaves_; }
  std::optional<std::int64_t> start() const { return start_; }
  /// True once a write of the open leaf was the last one for this parameter.
  bool finished(std::size_t parameter) const { return finished_[parameter] != 0; }
  /// Slots whose memory has been used so far, in any step, row lists aside: at least 1.
  int slots_used() const { return slots_used_; }
  /// Bytes of the arena that are in use.
  std::size_t bytes_held() const { return plan_.held_bytes(slots_used_) + list_bytes_; }
  /// The parameter's row list in a slot, which `rows` more are about to join.
  RowRoom room_for(std::size_t parameter, int slot, std::size_t rows);
  /// Gradients of this step that stayed where they were lent a place, or nodes that left for theirs
  /// without the host.
  int zero_copy() const { return zero_copy_; }
  /// The nodes that hold the leaves from `first_leaf` on, the open one included, ascending, and the
  /// address of the parameter's part of each (null: absent). The open leaf must have written the
  /// parameter for the last time, or have ended.
  struct Held {
    std::vector<StepHeader::Node> nodes;
    std::vector<const std::byte*> parts;
  };
  Held held_since(std::int64_t first_leaf, std::size_t parameter) const;

  /// Nodes held, ascending; node k's table is the board's slot_table(k). Before set_start() their
  /// blocks count from this worker's first leaf.
  const std::vector<StepHeader::Node>& nodes() const { return nodes_; }
  /// The same once the open leaf has ended. Their tables already have what it has written for the
  /// last time.
  std::vector<StepHeader::Node> nodes_at_end() const;

 private:
  /// One gradient on its way into a node: in a slot, or still in torch's memory (`hot`).
  struct Moving {
    std::uint8_t slot = kAbsent;
    const void* hot = nullptr;
    double weight = 0;
    bool may_stay = false;   ///< where it is hot
    std::int64_t count = 0;  ///< of its elements there; 0 too where they are not held
  };
  std::size_t chain_length(Block block) const;
  void merge(std::size_t parameter, Moving moving, std::size_t chain);
  void set(std::size_t parameter, std::uint8_t slot, const Moving& moving);
  void add(std::size_t parameter, std::uint8_t slot, const Moving& moving);
  /// Whether a leaf of this worker that is still to come is merged with the node.
  bool grows(Block block) const;
  /// The parameter's part of that node leaves, if it is elsewhere.
  void let_leave(std::size_t parameter, std::size_t node, bool completes);
  std::uint8_t add_nodes(std::size_t parameter, std::uint8_t left, std::uint8_t right);
  RowList list_in(std::size_t parameter, std::uint8_t slot) const;
  /// A leaf that ends, with the nodes that are merged with it.
  StepHeader::Node merged(StepHeader::Node leaf) const;
  void push(StepHeader::Node leaf);
  /// The slot for a node: the one that already contains `born`, else a free one that is not lent.
  std::uint8_t take_slot(std::size_t parameter, const void* born);
  std::uint64_t lent(std::size_t parameter) const {
    return (*lent_)[parameter].load(std::memory_order_acquire);
  }
  void use(std::size_t parameter, int slot);
  void note_magnitude(std::size_t parameter);
  std::byte* place(std::size_t parameter, std::uint8_t slot) const;

  const Plan& plan_;
  std::byte* arena_;
  StepBoard board_;
  Options options_;
  double measured_ = 0;             ///< of the gradient that is being written
  double* largest_;                 ///< measured_, or null without reports_magnitude
  std::vector<double> magnitudes_;  ///< by parameter, of the open leaf or the last one
  std::function<void(int)> before_slot_;
  std::function<void(std::size_t, std::size_t)> before_list_;
  NodesElsewhere* elsewhere_ = nullptr;  ///< null: nodes are folded in the arena
  std::optional<std::int64_t> count_;    ///< of this worker's leaves in the step, where known
  bool is_last_ = false;                 ///< the open leaf is the last of them
  bool ends_node_ = false;               ///< nothing is added to the open leaf's node after it
  std::vector<StepHeader::Node> nodes_;  ///< a stack; the open leaf's table is the next one
  std::vector<std::uint64_t> free_;      ///< per parameter: bit s set while slot s is free
  std::shared_ptr<LentSlots> lent_;
  std::vector<std::uint8_t> used_;      ///< per parameter: slots used so far, in any step
  std::vector<std::uint8_t> finished_;  ///< per parameter: last write of the open leaf is done
  std::size_t chain_ = 0;               ///< nodes that the open leaf will be folded into
  std::optional<std::int64_t> start_;
  std::int64_t leaves_ = 0;
  double weight_ = 1;
  bool in_leaf_ = false;
  int slots_used_ = 1;
  std::map<std::pair<std::size_t, int>, std::size_t> lists_;  ///< bytes used, by parameter and slot
  std::size_t list_bytes_ = 0;
  int zero_copy_ = 0;
};

/// Puts the nodes that are left at the end, counted from the first leaf, on the board.
void publish_nodes(const LeafFolder& folder, StepHeader& header);

}  // namespace tutti
