#pragma once

// Updates the parameters that each logical worker has for itself, as if it trained them alone, on
// its own shards. Its gradient is Σ w·g / Σ w over its shards, its clip by norm knows its own norm,
// and where its gradient is not finite, it alone leaves its copy as it was. Where an averaging
// policy decides so, copies are averaged right after (replica_averaging.h), while a tile is hot.
//
// One worker owns a tile of all copies, on each host. A host updates the copies that are right
// there (ReplicaHosts), and before copies are averaged they are given to all. Where the policy
// overlaps and there are several hosts, what is given travels until its mean is due, or somebody
// looks.
//
// Threads: one. Failure: what StepExchange::barrier() throws.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/averaging/replica_averaging.h"
#include "sync/averaging/replica_copies.h"
#include "sync/nodes/logical_workers.h"
#include "sync/nodes/slice_fold.h"
#include "sync/plan/tile_share.h"
#include "sync/step/shard_board.h"
#include "sync/step/step_exchange.h"
#include "sync/update/gradient_norms.h"
#include "sync/update/update_rules.h"
#include "tutti/clip.h"

namespace tutti {

/// What is known of one logical worker's gradient of its own parameters, in the current step.
struct LocalVerdict {
  std::string refusal;  ///< why its parameters stay as they were; "": its gradient is finite
  double divisor = 1;   ///< Σ of its weights, times the loss scale
  NodeRange nodes = {};
  double squares = 0;  ///< ‖g‖² before clipping, where it had to be known and is finite
  std::vector<double> scales;  ///< per parameter: clipping multiplies its gradient; empty: by 1
};

class ReplicaUpdate {
 public:
  /// Per-replica parameter p is updated by `rules[p]`. `averaging` may be null. Keeps references.
  /// Collective.
  ReplicaUpdate(StepExchange& exchange, const ShardBoard& board, const ReplicaCopies& copies,
                std::vector<ShardRange> logical,
                const std::vector<std::optional<UpdateRule>>& rules, const Clip& clip,
                ReplicaAveraging* averaging);
  ~ReplicaUpdate();
  ReplicaUpdate(const ReplicaUpdate&) = delete;
  ReplicaUpdate& operator=(const ReplicaUpdate&) = delete;

  /// After arrive(): finds each logical worker's nodes. Gradients are `loss_scale` times too large.
  void collect_nodes(double loss_scale);
  /// Then judges each logical worker, the same on all workers. What the step `step` updates, and
  /// which copies it averages, is known from here on.
  const std::vector<LocalVerdict>& judge(std::int64_t step);
  /// Does this worker's part of the step, inside complete(); learning rates are multiplied by
  /// `rate_factor`.
  void apply(double rate_factor);
  /// The step is complete, and counts.
  void commit();
  /// Between steps, inside run_collectives(): what is on its way lands. Collective.
  void land();

  /// How often each logical worker's parameters were updated.
  std::vector<UpdateRules>& rules() { return rules_; }
  const std::vector<UpdateRules>& rules() const { return rules_; }

  /// Whether the step updates anything.
  bool updates_any() const;
  /// Whether that logical worker has a gradient of the parameter in the current step.
  bool touched(std::size_t logical, std::uint32_t parameter) const;
  /// Writes its gradient, of the node type, to `to`. Any worker may call this alone, between
  /// judge() and complete().
  void read_gradient(std::size_t logical, std::uint32_t parameter, std::byte* to);

 private:
  /// What a step gives whose means are on their way.
  struct Flight {
    std::int64_t step = 0;
    std::vector<HostPiece> pieces;
    std::uint64_t links_dropped = 0;  ///< when it began
  };

  NodeSources sources_of(std::size_t logical, std::uint32_t parameter) const;
  void find_norms();
  void measure(std::size_t logical);
  void update_all(double rate_factor);
  void average_all();
  void give(std::vector<HostPiece> pieces);
  void give_again(std::span<const Flight> flights);
  void await_arrivals();
  void update_tile(std::size_t logical, const ElementRange& tile, const PreparedUpdate& by,
                   const NodeSources& sources);
  const Section<double>& norms_of_tiles(std::size_t logical, std::uint32_t parameter) const;

  StepExchange& exchange_;
  SliceFold slices_;
  const ShardBoard& board_;
  const ReplicaCopies& copies_;
  std::vector<ShardRange> logical_;
  std::vector<UpdateRules> rules_;  ///< per logical worker
  Clip clip_;
  ReplicaAveraging* averaging_;
  std::vector<ElementRange> share_;  ///< what this worker owns of all per-replica parameters
  std::vector<std::byte> gradient_;  ///< of a tile
  SectionList<double> norms_;        ///< tiles_of_replicas(): Σ x² of each
  std::vector<LocalVerdict> locals_;
  std::vector<std::vector<std::uint8_t>> updated_;  ///< per logical worker and parameter
  std::int64_t step_ = 0;
  std::vector<Flight> flights_;  ///< the oldest first
};

}  // namespace tutti
