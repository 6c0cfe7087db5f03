#include "run/pipeline/pipeline_walk.h"

#include <algorithm>

namespace tutti {
namespace {

/// When the results of each stage and micro-batch are there; negative: not yet.
class Results {
 public:
  Results(int stages, int micro_batches)
      : micro_batches_(static_cast<std::size_t>(micro_batches)),
        forward_(static_cast<std::size_t>(stages) * micro_batches_, -1),
        input_(forward_) {}
  void note(const StageAction& action, double end) {
    const auto at = place(action);
    if (action.work == StageWork::forward) forward_[at] = end;
    if (gives_input(action.work)) input_[at] = end;
  }
  double of(const StageAction& action) const {
    return (action.work == StageWork::forward ? forward_ : input_)[place(action)];
  }

 private:
  std::size_t place(const StageAction& action) const {
    return static_cast<std::size_t>(action.stage) * micro_batches_ +
           static_cast<std::size_t>(action.micro_batch);
  }
  std::size_t micro_batches_;
  std::vector<double> forward_;
  std::vector<double> input_;  ///< its gradient
};

}  // namespace

std::optional<StageAction> need_of(const StageAction& action, int stages) {
  if (action.work == StageWork::forward && action.stage > 0) {
    return StageAction{StageWork::forward, action.stage - 1, action.micro_batch};
  }
  if (gives_input(action.work) && action.stage + 1 < stages) {
    return StageAction{StageWork::backward, action.stage + 1, action.micro_batch};
  }
  return {};
}

PipelineWalk walk(const PipelineSchedule& schedule, const WalkCosts& costs) {
  const auto workers = static_cast<std::size_t>(schedule.workers());
  Results results(schedule.stages(), schedule.micro_batches());
  PipelineWalk walk{.times = std::vector<std::vector<PipelineWalk::Times>>(workers)};
  // The earliest start; negative where something is not there yet. What an action needs of its own
  // stage stands before it in the list of its worker.
  const auto start_of = [&](int worker, const StageAction& action, double free) {
    const auto need = need_of(action, schedule.stages());
    if (!need) return free;
    const auto there = results.of(*need);
    if (there < 0) return there;
    const bool travels = schedule.worker_of(need->stage) != worker;
    return std::max(free, there + (travels ? costs.transfer : 0));
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t w = 0; w < workers; ++w) {
      const auto& actions = schedule.actions(static_cast<int>(w));
      auto& times = walk.times[w];
      while (times.size() < actions.size()) {
        const auto& action = actions[times.size()];
        const auto start =
            start_of(static_cast<int>(w), action, times.empty() ? 0 : times.back().end);
        if (start < 0) break;
        times.push_back({start, start + costs.duration(action)});
        results.note(action, times.back().end);
        moved = true;
      }
    }
  }
  return walk;
}

PipelineWalk walk_in_units(const PipelineSchedule& schedule) {
  return walk(schedule, {.duration = [](const StageAction& action) {
                return action.work == StageWork::backward ? 2.0 : 1.0;
              }});
}

}  // namespace tutti
