#include "run/pipeline/pipeline_kinds.h"

#include <algorithm>

namespace tutti {

ActionsOfWorkers gpipe_actions(int stages, int micro_batches) {
  ActionsOfWorkers all;
  for (int s = 0; s < stages; ++s) {
    auto& actions = all.emplace_back();
    for (const auto work : {StageWork::forward, StageWork::backward}) {
      for (int m = 0; m < micro_batches; ++m) actions.push_back({work, s, m});
    }
  }
  return all;
}

ActionsOfWorkers one_f_one_b_actions(int stages, int micro_batches) {
  ActionsOfWorkers all;
  for (int s = 0; s < stages; ++s) {
    auto& actions = all.emplace_back();
    const int ahead = std::min(stages - 1 - s, micro_batches);
    for (int m = 0; m < ahead; ++m) actions.push_back({StageWork::forward, s, m});
    for (int m = 0; m < micro_batches; ++m) {
      if (m + ahead < micro_batches) actions.push_back({StageWork::forward, s, m + ahead});
      actions.push_back({StageWork::backward, s, m});
    }
  }
  return all;
}

ActionsOfWorkers interleaved_actions(int workers, int stages_per_worker, int micro_batches) {
  ActionsOfWorkers all;
  const int steps = stages_per_worker * micro_batches;
  const int round = workers * stages_per_worker;
  for (int w = 0; w < workers; ++w) {
    // A worker takes W micro-batches through one of its stages before it turns to its next one.
    const auto at = [&](StageWork work, int step) {
      const int turn = step % round / workers;
      const int own = work == StageWork::forward ? turn : stages_per_worker - 1 - turn;
      return StageAction{work, own * workers + w, step / round * workers + step % workers};
    };
    auto& actions = all.emplace_back();
    const int ahead = std::min((workers - 1 - w) * 2 + (stages_per_worker - 1) * workers, steps);
    for (int step = 0; step < ahead; ++step) actions.push_back(at(StageWork::forward, step));
    for (int step = 0; step < steps; ++step) {
      if (step + ahead < steps) actions.push_back(at(StageWork::forward, step + ahead));
      actions.push_back(at(StageWork::backward, step));
    }
  }
  return all;
}

ActionsOfWorkers zb_h1_actions(int stages, int micro_batches) {
  ActionsOfWorkers all;
  for (int s = 0; s < stages; ++s) {
    auto& actions = all.emplace_back();
    const int ahead = std::min(stages - 1 - s, micro_batches);
    for (int m = 0; m < ahead; ++m) actions.push_back({StageWork::forward, s, m});
    // The weights' half is s micro-batches late: with the S − 1 − s forwards ahead and the one
    // under way, every stage then keeps S micro-batches at most, as the first one of 1F1B does.
    for (int m = 0; m < micro_batches + s; ++m) {
      if (m + ahead < micro_batches) actions.push_back({StageWork::forward, s, m + ahead});
      if (m < micro_batches) actions.push_back({StageWork::backward_input, s, m});
      if (m >= s) actions.push_back({StageWork::backward_weight, s, m - s});
    }
  }
  return all;
}

}  // namespace tutti
