#pragma once

// Where the copies of a parameter that logical workers have for themselves become one: when an
// averaging policy says so, tile by tile.
//
//   values ← mean of the copies, along the tree over the logical workers, ÷ L ←
//   AveragingPolicy::combine()
//
// Only parameters take part that some logical worker updated since they last did: others are equal
// everywhere already, and a mean of equal values may differ from them by a rounding.
//
// Threads: one; each tile has one owner. Failure: OutOfMemory when there is no memory; Mismatch
// where combine() throws: some tiles may be combined.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/fold_program.h"
#include "sync/averaging/policy_call.h"
#include "sync/averaging/replica_copies.h"
#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "sync/step/traffic_count.h"
#include "sync/update/shared_model.h"
#include "sync/update/update_rules.h"
#include "tutti/averaging.h"
#include "tutti/group.h"

namespace tutti {

/// The mean of what each logical worker has, along `tree` over them, to `to`, which may be one of
/// the sources.
void tree_mean(const FoldProgram& tree, std::span<const void* const> sources, DType type,
               std::int64_t count, void* to);

struct AveragingOptions {
  AveragingPolicyPointer averaging;
  StateAtAveraging state = StateAtAveraging::keep;
  std::int64_t fusion = 0;  ///< elements: of a group
  /// Per parameter: what each of its states is filled with.
  std::vector<std::vector<double>> initial_states;
  std::string name = {};  ///< in errors
};

class ParameterAveraging {
 public:
  /// Keeps references. Collective.
  ParameterAveraging(const Group& group, const Plan& plan, const ReplicaCopies& copies,
                     AveragingOptions options);

  /// The step at hand, in which `updating[p]` logical workers update p.
  void begin(std::int64_t step, const std::vector<std::int64_t>& updating);
  /// Whether its copies become one in this step.
  bool due(std::uint32_t parameter) const { return due_[parameter] != 0; }
  /// Whether some group is due, whether anything moved in it or not.
  bool any_due() const { return any_due_; }
  /// All copies of that tile, once they are what the step made of them.
  void combine(const ElementRange& tile);
  /// Once the step counts. `rules` of each logical worker.
  void commit(std::vector<UpdateRules>& rules);

  /// Per parameter: whether some logical worker updated it since it was last due.
  std::vector<std::uint8_t>& moved() { return moved_; }
  /// What the averaging policy keeps: its own states, and as values what all copies were before;
  /// null where it keeps nothing.
  const SharedModel* kept() const { return kept_.get(); }
  /// The parameter is the same everywhere, and as if it had always been so.
  void restart(std::uint32_t parameter);

  /// Of what the step before made due: what each logical worker sent.
  std::size_t bytes() const { return bytes_; }
  const TrafficReport& traffic() const { return traffic_.report(); }

 private:
  /// The mean of what `at(l)` says, to `mean_`.
  template <class At>
  void take_mean(DType type, std::int64_t count, const At& at);
  void ask_policy(const ElementRange& tile);
  void combine_states(const ElementRange& tile);
  void note_traffic(const std::vector<std::int64_t>& updating);

  const Plan& plan_;
  const ReplicaCopies& copies_;
  AveragingOptions options_;
  Buckets groups_;
  FoldProgram program_;  ///< the tree over the logical workers
  std::unique_ptr<SharedModel> kept_;
  std::vector<std::uint8_t> moved_;
  std::vector<std::uint8_t> moves_;  ///< with the step at hand
  std::vector<std::uint8_t> due_;
  std::vector<std::byte> mean_;  ///< of a tile
  PolicyCall call_;
  TrafficCount traffic_;
  std::size_t bytes_ = 0;
  bool any_due_ = false;
};

}  // namespace tutti
