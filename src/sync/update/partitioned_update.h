#pragma once

// From the nodes of all workers to new parameters, on one host: every worker updates the tiles that
// it owns of the one copy of parameters and optimizer state.
//
// Whether a step is applied is decided by all workers from the same published facts, before any
// byte of a parameter or of state has changed. Where a norm has to be known first, or a sum of
// finite gradients might overflow, tiles are folded into the owner's arena and judged; otherwise
// each tile is folded and updated in one sweep. No bit depends on which. Only elements are updated
// that a source has: value, state and weight decay of rows that no shard touched are left alone.
//
// Threads: one. Failure: what StepExchange::barrier() throws.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/step/gradient_source.h"
#include "sync/step/owned_ranges.h"
#include "sync/step/shard_board.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "sync/update/shared_model.h"
#include "sync/update/tile_updates.h"
#include "sync/update/update_rules.h"
#include "tutti/clip.h"

namespace tutti {

class PartitionedUpdate {
 public:
  /// `rules[p]` of parameter p; where there is none, `others` update it.
  /// Each parameter that is not per replica has its gradient from one of the sources. Keeps
  /// references. Collective.
  PartitionedUpdate(StepExchange& exchange, ShardBoard& board, SharedModel& model,
                    const std::vector<GradientSource*>& sources,
                    std::vector<std::optional<UpdateRule>> rules, TileUpdates* others,
                    const Clip& clip);

  /// Decides, after arrive(), whether the step is applied; the verdict is the same on all workers.
  /// Gradients are `loss_scale` times too large. `verdict` is that of the parts judged before: a
  /// refusal of theirs stands, and nothing is folded.
  Verdict judge(double loss_scale, Verdict verdict = {});
  /// Updates this worker's part, inside complete(); learning rates are multiplied by `rate_factor`.
  void apply(const Verdict& verdict, double rate_factor);
  /// Commits a step that is complete and counts; sources add to the report.
  void commit(const std::vector<std::uint8_t>& touched, StepReport& report);

  /// How often each parameter was updated; 0 for per-replica ones (replica_update.h).
  std::vector<std::int64_t>& updates() { return rules_.updates(); }

  /// Writes the folded gradient of one parameter that is an array, in its node type, to `to`. Any
  /// worker may call it alone, between judge() and complete().
  void read_gradient(const Verdict& verdict, std::uint32_t parameter, std::byte* to);

 private:
  struct SourceShare {
    GradientSource* source;
    OwnedRanges ranges;
  };
  SourceShare* share_of(std::uint32_t parameter);
  void take_norms(Verdict& verdict);
  /// Hands the elements of a range that this worker owns to `take`.
  void visit(SourceShare& share, const ElementRange& range, const Verdict& verdict,
             const GradientSource::Take& take) const;
  void run_kernel(SourceShare& share, const ElementRange& range, const Verdict& verdict,
                  double rate_factor);
  void run_other(SourceShare& share, const ElementRange& range, const Verdict& verdict,
                 double rate_factor);
  UpdateTarget target_of(const ElementRange& range, const Verdict& verdict) const;

  StepExchange& exchange_;
  ShardBoard& board_;
  SharedModel& model_;
  UpdateRules rules_;
  TileUpdates* others_;
  Clip clip_;
  std::vector<SourceShare> shares_;
  std::vector<std::size_t> place_;   ///< per parameter: its source, in shares_
  std::vector<std::byte> gradient_;  ///< of a tile
  /// Σ x² per block of every parameter (GradientSource::norm_blocks).
  SectionList<double> norms_;
};

}  // namespace tutti
