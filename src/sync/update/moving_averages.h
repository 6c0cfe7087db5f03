#pragma once

// Exponential moving averages of all parameters over the steps, for evaluation. Each worker moves
// its own share of the tiles, once the step's values are there; the next step is not published
// before that.
//
//   a ← v at the first step, then a ← δ·a + (1 − δ)·v
//
// where v is the parameter after the step, or its float32 master copy. Every parameter moves in
// every step that is applied, touched or not, as torch.optim.swa_utils.get_ema_multi_avg_fn does.
//
// Threads: one. Failure: none.

#include <cstdint>
#include <vector>

#include "sync/plan/plan.h"
#include "sync/plan/tile_share.h"
#include "sync/update/shared_model.h"

namespace tutti {

class MovingAverages {
 public:
  MovingAverages(const Plan& plan, const SharedModel& model, double decay, int rank, int size);

  /// Moves the averages, after a step that was applied.
  void follow();
  /// The model's values become the averages; the averages' place keeps the values. This worker's
  /// share only: a barrier follows.
  void swap_in() { swap(true); }
  void swap_out() { swap(false); }

  /// Steps that the averages have seen.
  std::int64_t steps() const { return steps_; }
  void restore(std::int64_t steps) { steps_ = steps; }

 private:
  template <class Work>
  void for_share(const Work& work) const;
  void swap(bool in);

  const Plan& plan_;
  const SharedModel& model_;
  double decay_;
  std::vector<ElementRange> share_;
  std::int64_t steps_ = 0;
};

}  // namespace tutti
