#pragma once

// The averaging rounds of a run: which parameters are averaged at the end of a step, how a tile of
// their copies becomes one, and what that costs. Each replica has a copy of all parameters: a
// logical worker of a Trainer, or a worker of a DataParallel.
//
// A parameter is averaged when its bucket is due and some copy of it has moved since its bucket was
// last due. Copies of other parameters are equal already, and a mean of equal values may differ
// from them by a rounding.
//
// A policy that overlaps has a mean *in flight* between the step that sends it and the one that
// applies it, or the first one after it that counts. Copies differ then, so the parameter has moved
// again. While a mean is in flight no other one of the parameter is sent.
//
// Threads: one. Failure: that of PolicyCall, and of AveragedCopies::store(): some tiles may be
// averaged already.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sync/averaging/averaged_copies.h"
#include "sync/averaging/policy_call.h"
#include "sync/plan/fusion.h"
#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "sync/step/traffic_count.h"
#include "tutti/averaging.h"

namespace tutti {

/// Whether what all copies were is kept beside them.
bool has_before(const AveragingPolicy& policy);

class AveragingRounds {
 public:
  /// Buckets have up to `fusion` elements of the given parameters, in registration order, and none
  /// has parameters of two of the policy's fragments. Keeps references to `plan` and `policy`.
  /// InvalidArgument where a fragment would have no parameter; Unsupported for a parameter that the
  /// policy cannot send.
  AveragingRounds(const Plan& plan, const AveragingPolicy& policy,
                  std::span<const std::uint32_t> parameters, std::int64_t fusion,
                  std::size_t replicas);

  const Buckets& buckets() const { return buckets_; }

  /// The current step is `step`: the policy decides which buckets are due. What was noted of a step
  /// that was not committed is forgotten.
  void begin(std::int64_t step);
  /// Digest of what the policy decides of `step`: which buckets are due.
  std::uint64_t decision_of(std::int64_t step) const;
  /// Some copy of the parameter has moved since its bucket was last due.
  void note_moved(std::uint32_t parameter) { moves_[parameter] = 1; }
  /// The buckets that are due in the current step, moved or not, in ascending order.
  const std::vector<std::size_t>& due_buckets() const { return due_buckets_; }
  /// Whether the current step takes a mean of the parameter.
  bool is_sent(std::uint32_t parameter) const {
    return due_[parameter] != 0 && moves_[parameter] != 0;
  }
  /// Whether a mean that was in flight is applied in the current step.
  bool arrives(std::uint32_t parameter) const { return arrives_[parameter] != 0; }
  /// Whether either changes the parameter, or what is kept of it.
  bool is_averaged(std::uint32_t parameter) const {
    return is_sent(parameter) || arrives(parameter);
  }
  /// Whether the means that were sent in step `sent` are applied by now.
  bool arrives_of(std::int64_t sent) const { return step_ >= sent + overlap_.steps; }
  /// Whether means that the current step sends are in flight from here on.
  bool overlaps() const { return overlap_.steps > 0 && step_ > overlap_.after; }
  /// What send() has in flight, where that is taken only later, before receive(): copies' mean has
  /// to be the same then.
  void land(const ElementRange& tile, AveragedCopies& copies) const;
  /// First, where the parameter arrives(): copies are mixed with what the policy makes of the mean.
  void receive(const ElementRange& tile, AveragedCopies& copies);
  /// Then, where it is_sent(): the copies' mean becomes what the policy makes of it, on all
  /// replicas, or is in flight from here on.
  void send(const ElementRange& tile, AveragedCopies& copies);
  /// The current step counts: what was due has not moved any more.
  void commit();

  /// Counts what each replica sends of an averaged parameter and `states` tensors beside it. For
  /// each message `back` of the same size come back: the mean, or those of other replicas.
  void count_averaged(std::uint32_t parameter, int states, std::int64_t back = 1);
  /// Counts what averaging the gradients would have cost instead, in each of `steps` steps:
  /// `senders` replicas hand in a gradient, and all get the mean.
  void count_gradients(std::uint32_t parameter, std::int64_t senders, std::int64_t steps);
  /// Bytes that each replica sends in the current step.
  std::size_t bytes() const { return bytes_; }
  const TrafficReport& traffic() const { return traffic_.report(); }

  /// Per parameter: whether it moved since its bucket was last due, as of the last committed step.
  /// Checkpoints save and restore it.
  std::vector<std::uint8_t>& moved() { return moved_; }
  /// Likewise: the step that sent the mean that is in flight, 0 without one. Empty without overlap.
  std::vector<std::int64_t>& in_flight() { return in_flight_; }
  /// All copies of the parameter are equal, and nothing is in flight.
  void settle(std::uint32_t parameter);

 private:
  BucketTraffic& traffic_of(std::uint32_t parameter) {
    return traffic_.bucket(bucket_of_[parameter]);
  }

  bool is_due(std::int64_t step, std::size_t bucket) const;
  void ask(std::int64_t step, const ElementRange& tile, std::byte* values, AveragedCopies& copies);

  const Plan& plan_;
  const AveragingPolicy& policy_;
  AveragingOverlap overlap_;
  std::int64_t replicas_;
  std::int64_t step_ = 0;
  std::vector<std::size_t> fragment_of_;  ///< per bucket: what the policy is asked of
  Buckets buckets_;
  std::vector<std::size_t> bucket_of_;    ///< per parameter; those that are never averaged have 0
  std::vector<std::size_t> due_buckets_;  ///< in the current step, as due_ per parameter
  std::vector<std::uint8_t> due_;
  std::vector<std::uint8_t> moved_;
  std::vector<std::uint8_t> moves_;  ///< moved_, and the current step's
  std::vector<std::int64_t> in_flight_;
  std::vector<std::uint8_t> arrives_;  ///< in the current step
  PolicyCall call_;
  TrafficCount traffic_;
  std::size_t bytes_ = 0;
};

}  // namespace tutti
