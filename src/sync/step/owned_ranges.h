#pragma once

// Who folds and updates which elements of a source's parameters in a step: all workers share the
// work as the source deals it; or each tile has the same owner in every step; or one worker has the
// whole parameter.
//
// Threads: one. Every touched element has one owner, and all workers know whom.

#include <cstdint>
#include <functional>
#include <vector>

#include "sync/step/gradient_source.h"
#include "sync/step/step_exchange.h"

namespace tutti {

class OwnedRanges {
 public:
  /// Tiles of parameters for which `stays` holds have the same owner in every step. Keeps
  /// references.
  OwnedRanges(const StepExchange& exchange, const GradientSource& source,
              const std::function<bool(std::uint32_t parameter)>& stays = {});

  /// The touched ones that the worker `rank` owns, once the step is published.
  std::vector<ElementRange> of(int rank) const;

 private:
  const StepExchange& exchange_;
  const GradientSource& source_;
  std::vector<std::uint32_t> shared_;
  std::vector<std::uint32_t> staying_;
  std::vector<std::uint32_t> placed_;
};

/// Folds ranges that this worker owns, and stores them to all workers' arenas, at
/// NodeStore::result(), rounded once to the parameter's own type.
void fold_for_all(GradientSource& source, const NodeStore& nodes,
                  const std::vector<ElementRange>& owned);

}  // namespace tutti
