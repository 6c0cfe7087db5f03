#pragma once

// Averages the copies of parameters that a Trainer's logical workers have for themselves, tile by
// tile, when an averaging policy decides so:
//
//   values ← mean of the copies, along the tree over the logical workers, ÷ L ←
//   AveragingPolicy::combine()
//
// Where the policy sends_int8(), the mean is that of messages (int8_differences.h).
//
// The optimizer's state of these copies is kept, averaged or begun anew.
//
// On several hosts each averages all tiles for itself, of copies, or messages, that the others give
// it. What a logical worker's messages lack is kept on the host that gives it, until bring_kept().
// Where the policy overlaps, a message is what the copy was, or its difference in 8 bits, and a
// mean may be *on its way*: its messages are, and it is taken when it lands.
//
// Threads: one; each tile has one owner. Failure: OutOfMemory when there is no memory; Mismatch
// where combine() throws: some tiles may be averaged already.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/host_copies.h"
#include "kernels/fold_program.h"
#include "kernels/int8_blocks.h"
#include "sync/averaging/averaged_copies.h"
#include "sync/averaging/averaging_rounds.h"
#include "sync/averaging/int8_differences.h"
#include "sync/averaging/replica_copies.h"
#include "sync/nodes/step_memory.h"
#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "sync/update/shared_model.h"
#include "sync/update/update_rules.h"
#include "tutti/averaging.h"
#include "tutti/group.h"

namespace tutti {

/// Writes the mean of the sources, one per logical worker, along `tree` over them. `to` may be one
/// of the sources.
void tree_mean(const FoldProgram& tree, std::span<const void* const> sources, DType type,
               std::int64_t count, void* to);

struct AveragingOptions {
  AveragingPolicyPointer averaging;
  StateAtAveraging state = StateAtAveraging::keep;
  std::int64_t fusion = 0;  ///< elements of a bucket
  /// Per parameter: the value that each of its states starts with.
  std::vector<std::vector<double>> initial_states;
  std::string name = {};  ///< in errors
};

class ReplicaAveraging final : private AveragedCopies {
 public:
  /// Keeps references. Collective.
  ReplicaAveraging(StepMemory& memory, const Plan& plan, const ReplicaCopies& copies,
                   AveragingOptions options);

  /// The current step is `step`, in which `updating[p]` logical workers update p.
  void begin(std::int64_t step, const std::vector<std::int64_t>& updating);
  /// Decides what is averaged when, and counts what that costs.
  AveragingRounds& rounds() { return rounds_; }
  /// Whether some bucket is due, whether its parameters moved or not.
  bool any_due() const { return !rounds_.due_buckets().empty(); }
  /// Whether the current step averages anything.
  bool any_sent() const;
  /// Whether means that the current step sends may be on their way.
  bool may_fly() const { return given_.has_value() && rounds_.overlaps(); }
  /// First, once the step has updated its copies: mixes the tile with a mean that was sent before,
  /// where it arrives. All its messages are here.
  void receive(const ElementRange& tile);
  /// The means that the current step sends are on their way.
  void let_fly();
  /// Between steps: the messages of all means that are on their way are here. Takes the tile's,
  /// where it is one; then, on all workers, landed().
  void land(const ElementRange& tile);
  void landed();
  /// Whether write_given() has anything to do.
  bool gives_messages() const { return given_.has_value(); }
  /// Then: writes the messages of this worker's ranges, where other hosts get messages.
  void write_given(const std::vector<ElementRange>& ranges);
  /// What each host gives all others before copies are averaged: copies, or all messages.
  std::vector<HostPiece> given() const;
  /// At last, unless it is on its way: averages all copies of that tile, where it is sent.
  void average(const ElementRange& tile);
  /// The current step counts. `rules` are those of each logical worker.
  void commit(std::vector<UpdateRules>& rules);

  /// What the averaging policy keeps: its own states, residuals, and as values what all copies were
  /// before; null where it keeps nothing.
  const SharedModel* kept() const { return kept_.get(); }
  /// "kept.0", "residual.2", "residual.mean", "in_flight": what the k-th state of kept() is.
  std::string kept_name(int k) const;
  /// Between steps: what is kept is the same on all hosts, or as on that of rank 0. Collective.
  void bring_kept();
  void spread_kept();
  /// The parameter counts as one that all logical workers have always had in common: on one rank.
  /// Of each host.
  void restart(std::uint32_t parameter);
  /// Then, on all: AveragingRounds::settle().
  void settle(std::uint32_t parameter);

  TrafficReport traffic() const;

 private:
  std::byte* mean(const ElementRange& tile) override;
  std::byte* before(const ElementRange& tile) override;
  std::byte* state(const ElementRange& tile, int k) override;
  std::byte* in_flight(const ElementRange& tile) override;
  void mix(const ElementRange& tile, const std::byte* values, double own) override;
  void store(const ElementRange& tile, const std::byte* values) override;

  /// The mean of what the pointers `at(l)` lead to becomes `mean_`.
  template <class At>
  void take_mean(const ElementRange& tile, const At& at);
  void combine_states(const ElementRange& tile);
  void take_mean_of_messages(const ElementRange& tile);
  bool sends_int8() const { return options_.averaging->sends_int8(); }
  std::byte* write_message(const ElementRange& tile, std::size_t logical);
  void make_room_for_given();
  /// Bytes of the messages of a parameter's tiles, all of which but the last are full.
  std::size_t message_bytes(std::uint32_t parameter, std::int64_t count) const;
  std::byte* given_message(const ElementRange& tile, std::size_t logical) const;
  /// Σ x² of what it lacks.
  double& given_squares(const ElementRange& tile, std::size_t logical) const;
  /// What 8 bits lack of a logical worker's difference, or with `logical` their number, of the
  /// mean.
  float* residual(std::uint32_t parameter, std::size_t logical) const;
  std::size_t offset_of(const ElementRange& tile) const;
  std::size_t bytes_of(const ElementRange& tile) const;

  StepMemory& memory_;
  const Plan& plan_;
  const ReplicaCopies& copies_;
  AveragingOptions options_;
  FoldProgram program_;  ///< the tree over the logical workers
  std::unique_ptr<SharedModel> kept_;
  std::vector<std::byte> mean_;      ///< of a tile
  std::vector<std::byte> messages_;  ///< of a tile, one for each logical worker
  /// Of all tiles, where other hosts give some of them.
  std::optional<SharedMemory> given_;
  SectionList<std::byte> given_messages_;  ///< in given_, by logical worker and parameter
  SectionList<double> squares_;            ///< tiles_of_replicas(): what each lacks
  std::vector<std::uint8_t> is_flying_;    ///< per parameter: its mean is on its way
  bool takes_off_ = false;                 ///< so are those of the current step
  MeanOfMessages mean_of_messages_;
  AveragingRounds rounds_;
};

}  // namespace tutti
