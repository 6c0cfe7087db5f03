#pragma once

// Updates of the parameters that each logical worker has for itself: as if it trained them alone,
// on its own shards. Its gradient is Σ w·g / Σ w over its shards, its clip by norm knows its own
// norm, and where its gradient is not finite, it alone leaves its copy as it was. Where an
// averaging policy says so, copies become one right after (parameter_averaging.h).
//
// Every tile has one owner, of all copies.
//
// Threads: one. Failure: what StepExchange::barrier() throws.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sync/averaging/parameter_averaging.h"
#include "sync/averaging/replica_copies.h"
#include "sync/plan/tile_share.h"
#include "sync/step/logical_workers.h"
#include "sync/step/shard_board.h"
#include "sync/step/slice_fold.h"
#include "sync/step/step_exchange.h"
#include "sync/update/gradient_norms.h"
#include "sync/update/update_rules.h"
#include "tutti/clip.h"

namespace tutti {

/// What one logical worker's gradient of its own parameters is, in the step at hand.
struct LocalVerdict {
  std::string refusal;  ///< that it is not finite: its parameters stay as they were; "": it is
  double divisor = 1;   ///< Σ of its weights, times the loss scale
  NodeRange nodes = {};
  double squares = 0;  ///< ‖g‖² before clipping, where it had to be known and is finite
  std::vector<double> scales;  ///< per parameter, of the gradient: clipping; empty: all 1
};

class ReplicaUpdate {
 public:
  /// `rules[p]` of a per-replica parameter p. `averaging` may be null.
  /// Keeps references. Collective.
  ReplicaUpdate(StepExchange& exchange, const ShardBoard& board, const ReplicaCopies& copies,
                std::vector<ShardRange> logical,
                const std::vector<std::optional<UpdateRule>>& rules, const Clip& clip,
                ParameterAveraging* averaging);

  /// After arrive(): what each logical worker has. Gradients are `loss_scale` times too large.
  void collect_nodes(double loss_scale);
  /// Then, of each logical worker, the same on all workers. What the step `step` updates, and which
  /// copies become one in it, is known from here on.
  const std::vector<LocalVerdict>& judge(std::int64_t step);
  /// This worker's part of the step, inside complete(); learning rates are multiplied by
  /// `rate_factor`.
  void apply(double rate_factor);
  /// Once the step is complete, and counts.
  void commit();

  /// How often each logical worker's parameters were updated.
  std::vector<UpdateRules>& rules() { return rules_; }
  const std::vector<UpdateRules>& rules() const { return rules_; }

  /// Whether the step updates anything.
  bool updates_any() const;
  /// Whether that logical worker has a gradient of the parameter in the step at hand.
  bool touched(std::size_t logical, std::uint32_t parameter) const;
  /// Its gradient, of the node type, to `to`. Between judge() and complete(), by any worker alone.
  void read_gradient(std::size_t logical, std::uint32_t parameter, std::byte* to);

 private:
  NodeSources sources_of(std::size_t logical, std::uint32_t parameter) const;
  void find_norms();
  void measure(std::size_t logical);
  void update_tile(std::size_t logical, const ElementRange& tile, const PreparedUpdate& by,
                   const NodeSources& sources);
  double* blocks_of(std::size_t logical, std::uint32_t parameter) const;

  StepExchange& exchange_;
  SliceFold slices_;
  const ShardBoard& board_;
  const ReplicaCopies& copies_;
  std::vector<ShardRange> logical_;
  std::vector<UpdateRules> rules_;  ///< per logical worker
  Clip clip_;
  ParameterAveraging* averaging_;
  std::vector<ElementRange> share_;       ///< this worker's, of all per-replica parameters
  std::vector<std::byte> gradient_;       ///< of a tile
  std::vector<std::size_t> first_block_;  ///< per parameter, in a logical worker's; their number
  SharedMemory norms_;  ///< Σ x² per tile of every per-replica parameter, per logical worker
  std::vector<LocalVerdict> locals_;
  std::vector<std::vector<std::uint8_t>> updated_;  ///< per logical worker and parameter
};

}  // namespace tutti
