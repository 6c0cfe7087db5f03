#pragma once

// From the nodes of all workers to new parameters, on one host: every worker updates the tiles that
// it owns of the one copy of parameters and optimizer state.
//
// Whether a step is applied is decided by all workers from the same published facts, before any
// byte of a parameter or of state has changed. Where a norm has to be known first, or a sum of
// finite gradients might overflow, tiles are folded into the owner's arena and judged; otherwise
// each tile is folded and updated in one sweep. No bit depends on which. Of a row-sparse parameter
// only the rows are updated that some shard touched: value, state and weight decay of the others
// are left alone.
//
// Threads: one. Failure: what StepExchange::barrier() throws.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sync/coded/coded_gradients.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/shard_board.h"
#include "sync/step/step_exchange.h"
#include "sync/update/shared_model.h"
#include "sync/update/tile_updates.h"
#include "sync/update/update_rules.h"
#include "tutti/clip.h"

namespace tutti {

struct Verdict {
  std::string refusal;         ///< why the step is dropped; empty: it is applied
  bool finite = true;          ///< false: it is dropped for a gradient or sum that is not finite
  std::optional<double> norm;  ///< of the gradient, before clipping, where it had to be known
  bool folded = false;         ///< each owner's arena holds the folded gradient of its tiles
  double divisor_factor = 1;
  std::vector<double> scales;  ///< per parameter, of the gradient: clipping; empty: all 1
};

class PartitionedUpdate {
 public:
  /// `rules[p]` of parameter p; where there is none, `others` update it.
  /// With `coded`, gradients are what its messages say. Keeps references. Collective.
  PartitionedUpdate(StepExchange& exchange, ShardBoard& board, SharedModel& model,
                    RowGradients& rows, std::vector<std::optional<UpdateRule>> rules,
                    TileUpdates* others, const Clip& clip, CodedGradients* coded = nullptr);

  /// After arrive(): the same verdict on all workers. Gradients are `loss_scale` times too large.
  Verdict judge(double loss_scale);
  /// This worker's part, inside complete(); learning rates are multiplied by `rate_factor`.
  void apply(const Verdict& verdict, double rate_factor);
  /// Once the step is complete, and counts.
  void commit(const std::vector<std::uint8_t>& touched);

  /// How often a parameter was updated; of a per-replica one 0 (replica_update.h).
  std::vector<std::int64_t>& updates() { return rules_.updates(); }

  /// The folded gradient of one parameter, of its node type, to `to`. Between judge() and
  /// complete(), by any worker alone.
  void read_gradient(const Verdict& verdict, std::uint32_t parameter, std::byte* to);
  /// The same for a row-sparse one: hands its touched rows to take(), ascending.
  void read_rows(const Verdict& verdict, std::uint32_t parameter, const RowGradients::Take& take);
  /// Σ x² of it, as a norm takes it.
  double squares_of_rows(const Verdict& verdict, std::uint32_t parameter);

 private:
  void fold_own(double loss_scale);
  void fold_into(const ElementRange& range, double divisor_factor, void* to);
  void take_norms(Verdict& verdict);
  void run_kernel(const ElementRange& range, const Verdict& verdict, double rate_factor);
  void run_other(const ElementRange& tile, const Verdict& verdict, double rate_factor);
  // partitioned_update_rows.cpp
  void fold_rows(double loss_scale);
  void apply_rows(const Verdict& verdict, double rate_factor);
  void update_rows(std::uint32_t parameter, const PreparedUpdate& by, const Verdict& verdict,
                   const RowList& list);
  UpdateTarget target_of(const ElementRange& range, const Verdict& verdict) const;
  std::byte* folded_at(int rank, std::uint32_t parameter, std::int64_t element) const;
  std::vector<ElementRange> owned_by(int rank) const;
  bool is_coded(std::uint32_t parameter) const {
    return coded_ != nullptr && exchange_.plan().parameters()[parameter].is_partitioned();
  }
  double* blocks_of(std::uint32_t parameter) const;

  StepExchange& exchange_;
  ShardBoard& board_;
  SharedModel& model_;
  RowGradients& rows_;
  UpdateRules rules_;
  TileUpdates* others_;
  Clip clip_;
  CodedGradients* coded_;
  std::vector<std::uint32_t> by_kernel_;  ///< those with a rule; their owners change with the step
  std::vector<std::uint32_t> by_others_;  ///< those without; each tile has one owner
  std::vector<std::uint32_t> by_owner_;   ///< those that one worker has to itself
  std::vector<std::byte> gradient_;       ///< of a tile
  std::vector<std::size_t> first_block_;  ///< per parameter, in norms_; and their number
  /// Σ x² per tile of every parameter, or per block of rows (RowGradients::squares).
  std::optional<SharedMemory> norms_;
};

}  // namespace tutti
