#pragma once

// Finds what was written to a Trainer's parameters between its steps in ways that torch does not
// count: through data(), a pointer, an older view. In some steps each worker digests its share of
// the one copy that all read when the step before is over, and again when all shards of the step
// have run; one whose tensors are copies of it on a device compares those.
//
// Threads: one. Failure: InvalidArgument names the parameter.

#include <cstdint>
#include <string>
#include <vector>

#include "sync/plan/tile_share.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "sync/update/shared_model.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/shared_parameters.h"

namespace tutti {

class ValueCheck : public StepPart {
 public:
  /// Checks in the steps of is_checked_step() from 2 on. Keeps references. `name` is the Trainer's.
  ValueCheck(StepExchange& exchange, const WrappedModel& model, SharedParameters& shown,
             std::int64_t every, std::string name);
  /// These parameters of that copy are looked at as well.
  void add(const SharedModel& copy, const std::vector<std::uint32_t>& parameters);

  bool due(std::int64_t step) const;
  /// The step that comes is due or not: values as they are now, if it is. A barrier of all workers
  /// afterwards.
  void expect(std::int64_t step);
  /// Whether the current step is checked.
  bool expects() const { return expects_; }
  /// Throws where a parameter of this worker's share is not what it was.
  void judge(StepFacts& step) override;

 private:
  struct Piece {
    const SharedModel* copy;
    ElementRange range;
  };
  std::uint64_t digest_of(const Piece& piece) const;

  StepExchange& exchange_;
  const WrappedModel& model_;
  SharedParameters& shown_;
  std::int64_t every_;
  std::string name_;
  std::vector<Piece> pieces_;
  std::vector<std::uint64_t> digests_;  ///< of the pieces; empty where the step is not due
  bool expects_ = false;
};

}  // namespace tutti
