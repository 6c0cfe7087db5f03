#pragma once

// One worker's copy of the parameters of an AveragedParallel: the program's own
// tensors. Their mean over all workers comes from an all-reduce, along the tree over ranks; where
// the policy sends_int8(), from an all-gather of messages (int8_differences.h). Beside them lie, on
// each worker, what they were when they were last averaged, what the policy keeps, residuals (this
// worker's, and the mean's, which is the same on all), and a mean that is in flight.
//
// Threads: one. Failure: OutOfMemory when there is no memory; that of a Group's collectives;
// store() throws Mismatch where a value is beyond a 16-bit type.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sync/averaging/averaged_copies.h"
#include "sync/averaging/int8_differences.h"
#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "tutti/averaging.h"
#include "tutti/group.h"

namespace tutti {

class WorkerCopies final : public AveragedCopies {
 public:
  /// Parameter p lies, and stays, at `values[p]`. Keeps references to `plan` and `policy`.
  /// Collective.
  WorkerCopies(const Group& group, const Plan& plan, const AveragingPolicy& policy,
               const Buckets& buckets, std::vector<std::byte*> values, const std::string& name);

  /// All copies are equal, and count as averaged: before() is what they are now.
  void restart();
  /// Whether a byte of this worker's copy differs from what it was when it was last averaged.
  bool has_moved(std::uint32_t parameter) const;
  bool is_finite(std::uint32_t parameter) const;
  /// Messages that come back for one that a worker sends: the mean, or those of the others.
  std::int64_t messages_back() const;
  /// Takes mean() of these parameters of one bucket, which are of one node type. Collective.
  void all_reduce(std::span<const std::uint32_t> parameters, const CollectiveOptions& options);

  std::byte* mean(const ElementRange& tile) override;
  std::byte* before(const ElementRange& tile) override;
  std::byte* state(const ElementRange& tile, int k) override;
  std::byte* in_flight(const ElementRange& tile) override;
  void mix(const ElementRange& tile, const std::byte* values, double own) override;
  void store(const ElementRange& tile, const std::byte* values) override;

  std::size_t bytes() const { return memory_.bytes(); }

 private:
  /// Offsets of what belongs to a parameter in this worker's block, which begins with room for the
  /// means of a bucket, and all workers' messages of it.
  struct Place {
    std::size_t mean = 0;    ///< in the node type; holds until the next all-reduce
    std::size_t before = 0;  ///< in its own type
    std::size_t first_state =
        0;  ///< in the node type; then two residuals, and a mean in flight, where there are such
    std::size_t message = 0;  ///< in the messages of a worker, as of the last all-reduce
  };
  struct Layout {
    Layout(const Plan& plan, const Buckets& buckets, const AveragingPolicy& policy, int workers);
    std::vector<Place> places;
    std::size_t messages = 0;
    std::size_t bytes = 0;
  };
  const PlanEntry& entry_of(std::uint32_t parameter) const { return plan_.parameters()[parameter]; }
  void all_gather(std::span<const std::uint32_t> parameters, const CollectiveOptions& options);
  void write_messages(std::uint32_t parameter);
  /// This worker's, or the mean's.
  enum class Residual : std::uint8_t { own, mean };
  float* residual(const ElementRange& tile, Residual which);
  std::byte* message_of(int rank, std::uint32_t parameter) const;
  /// Rounds these values to the parameter's own type, into what the tile was when last averaged.
  void round_into_before(const ElementRange& tile, const std::byte* values);
  /// The size of the parameter in its own type.
  std::size_t bytes_of(std::uint32_t parameter) const;
  std::byte* before_of(std::uint32_t parameter) const {
    return memory_.data() + layout_.places[parameter].before;
  }

  Group group_;
  const Plan& plan_;
  const AveragingPolicy& policy_;
  std::vector<std::byte*> values_;
  Layout layout_;
  SharedMemory memory_;
  std::vector<std::byte> wide_before_;  ///< of a tile, in the node type
  std::vector<float> wide_copy_;        ///< of a tile
  std::size_t message_bytes_ = 0;       ///< of each worker, as of the last all-reduce
  MeanOfMessages mean_of_messages_;
};

}  // namespace tutti
