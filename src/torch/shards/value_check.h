#pragma once

// Finds what was written to a Trainer's parameters between its steps in ways that torch does not
// count: through data(), a pointer, an older view. In some steps each worker digests its share of
// the one copy that all read when the step before is over, and again when all shards of the step
// have run.
//
// Threads: one. Failure: none of its own.

#include <cstdint>
#include <optional>
#include <vector>

#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "sync/update/shared_model.h"

namespace tutti {

class ValueCheck {
 public:
  /// Checks in the steps of is_checked_step() from 2 on. Keeps a reference to the plan.
  ValueCheck(const Plan& plan, int rank, int size, std::int64_t every);
  /// These parameters of that copy are looked at as well.
  void add(const SharedModel& copy, const std::vector<std::uint32_t>& parameters);

  bool due(std::int64_t step) const;
  /// The step that comes is due or not: values as they are now, if it is. A barrier of all workers
  /// afterwards.
  void expect(std::int64_t step);
  /// Whether the current step is checked.
  bool expects() const { return expects_; }
  /// The first parameter of this worker's share that is not what it was.
  std::optional<std::uint32_t> first_changed() const;

 private:
  struct Piece {
    const SharedModel* copy;
    ElementRange range;
  };
  std::uint64_t digest_of(const Piece& piece) const;

  const Plan& plan_;
  int rank_;
  int size_;
  std::int64_t every_;
  std::vector<Piece> pieces_;
  std::vector<std::uint64_t> digests_;  ///< of the pieces; empty where the step is not due
  bool expects_ = false;
};

}  // namespace tutti
