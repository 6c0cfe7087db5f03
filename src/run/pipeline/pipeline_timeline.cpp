#include "tutti/pipeline_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "run/pipeline/pipeline_walk.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// A worker computes one thing at a time, so that its actions are in the order in which memory is
/// taken and given back. `actions` are by worker, then by start.
void measure_memory(const std::vector<TimedAction>& actions, const std::vector<StageCosts>& costs,
                    std::vector<WorkerUse>& workers, std::vector<StageUse>& stages) {
  struct Kept {
    int in_flight = 0;
    int awaiting = 0;  ///< their weights' half
  };
  std::vector<Kept> kept;
  std::uint64_t bytes = 0;
  int worker = -1;
  for (const auto& timed : actions) {
    const auto s = static_cast<std::size_t>(timed.action.stage);
    if (timed.worker != worker) {
      worker = timed.worker;
      kept.assign(stages.size(), {});
      bytes = 0;
    }
    const auto cost = costs.empty() ? StageCosts{} : costs[s];
    switch (timed.action.work) {
      case StageWork::forward:
        ++kept[s].in_flight;
        bytes += cost.activation_bytes;
        break;
      case StageWork::backward:
        --kept[s].in_flight;
        bytes -= cost.activation_bytes;
        break;
      case StageWork::backward_input:
        --kept[s].in_flight;
        ++kept[s].awaiting;
        bytes += cost.weight_half_bytes - cost.activation_bytes;
        break;
      case StageWork::backward_weight:
        --kept[s].awaiting;
        bytes -= cost.weight_half_bytes;
        break;
    }
    auto& stage = stages[s];
    stage.peak_in_flight = std::max(stage.peak_in_flight, kept[s].in_flight);
    stage.peak_held = std::max(stage.peak_held, kept[s].in_flight + kept[s].awaiting);
    auto& peak = workers[static_cast<std::size_t>(worker)].peak_bytes;
    peak = std::max(peak, bytes);
  }
}

void require_ms(const std::string& what, double ms) {
  if (std::isfinite(ms) && ms >= 0) return;
  throw InvalidArgument(
      fmt::format("costs of a pipeline: {} takes {} ms: must be 0 or more", what, ms));
}

void require_costs(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  if (std::ssize(costs.stages) != schedule.stages()) {
    throw InvalidArgument(fmt::format("costs of a pipeline: of {} stages, for {}",
                                      costs.stages.size(), schedule.text()));
  }
  for (int s = 0; s < schedule.stages(); ++s) {
    const auto& stage = costs.stages[static_cast<std::size_t>(s)];
    require_ms(fmt::format("the forward of stage {}", s), stage.forward_ms);
    require_ms(fmt::format("the input's half of the backward of stage {}", s),
               stage.backward_input_ms);
    require_ms(fmt::format("the weights' half of the backward of stage {}", s),
               stage.backward_weight_ms);
  }
  require_ms("a transfer", costs.transfer_ms);
}

double duration_of(const StageAction& action, const StageCosts& costs) {
  switch (action.work) {
    case StageWork::forward:
      return costs.forward_ms;
    case StageWork::backward:
      return costs.backward_input_ms + costs.backward_weight_ms;
    case StageWork::backward_input:
      return costs.backward_input_ms;
    case StageWork::backward_weight:
      return costs.backward_weight_ms;
  }
  return 0;
}

}  // namespace

PipelineCosts PipelineCosts::equal(int stages, const StageCosts& costs, double transfer_ms) {
  if (stages < 1) {
    throw InvalidArgument(fmt::format("costs of a pipeline: {} stages: must be 1 or more", stages));
  }
  return {.stages = std::vector(static_cast<std::size_t>(stages), costs),
          .transfer_ms = transfer_ms};
}

PipelineTimeline::PipelineTimeline(std::string title, std::vector<TimedAction> actions,
                                   const std::vector<StageCosts>& costs)
    : title_(std::move(title)), actions_(std::move(actions)) {
  if (actions_.empty()) throw InvalidArgument("a timeline of a pipeline: nothing was computed");
  double first = std::numeric_limits<double>::infinity();
  for (const auto& [worker, action, start, end] : actions_) {
    if (worker < 0 || action.stage < 0 || action.micro_batch < 0) {
      throw InvalidArgument(
          fmt::format("a timeline of a pipeline: worker {} with the {}", worker, text_of(action)));
    }
    if (!(std::isfinite(start) && std::isfinite(end) && start <= end)) {
      throw InvalidArgument(
          fmt::format("a timeline of a pipeline: the {} of worker {} is from {} to {} ms",
                      text_of(action), worker, start, end));
    }
    first = std::min(first, start);
    const auto w = static_cast<std::size_t>(worker);
    const auto s = static_cast<std::size_t>(action.stage);
    workers_.resize(std::max(workers_.size(), w + 1));
    stages_.resize(std::max(stages_.size(), s + 1));
    stages_[s].worker = worker;
  }
  if (!costs.empty() && costs.size() < stages_.size()) {
    throw InvalidArgument(fmt::format("a timeline of a pipeline: costs of {} stages, of {}",
                                      costs.size(), stages_.size()));
  }
  std::ranges::stable_sort(actions_, {}, [](const TimedAction& timed) {
    return std::tuple(timed.worker, timed.start_ms, timed.end_ms);
  });
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    auto& timed = actions_[i];
    timed.start_ms -= first;
    timed.end_ms -= first;
    makespan_ms_ = std::max(makespan_ms_, timed.end_ms);
    workers_[static_cast<std::size_t>(timed.worker)].busy_ms += timed.end_ms - timed.start_ms;
    if (i == 0 || actions_[i - 1].worker != timed.worker) continue;
    if (timed.start_ms < actions_[i - 1].end_ms) {
      throw InvalidArgument(
          fmt::format("a timeline of a pipeline: on worker {} the {} overlaps the {}", timed.worker,
                      text_of(timed.action), text_of(actions_[i - 1].action)));
    }
  }
  double idle = 0;
  for (auto& worker : workers_) {
    worker.bubble = makespan_ms_ > 0 ? std::max(0.0, 1 - worker.busy_ms / makespan_ms_) : 0;
    idle += worker.bubble;
  }
  bubble_ = idle / static_cast<double>(workers_.size());
  measure_memory(actions_, costs, workers_, stages_);
}

PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  require_costs(schedule, costs);
  const auto found =
      walk(schedule, {.duration =
                          [&](const StageAction& action) {
                            return duration_of(
                                action, costs.stages[static_cast<std::size_t>(action.stage)]);
                          },
                      .transfer = costs.transfer_ms});
  std::vector<TimedAction> actions;
  for (int w = 0; w < schedule.workers(); ++w) {
    const auto& times = found.times[static_cast<std::size_t>(w)];
    for (std::size_t i = 0; i < times.size(); ++i) {
      actions.push_back({w, schedule.actions(w)[i], times[i].start, times[i].end});
    }
  }
  return {schedule.text(), std::move(actions), costs.stages};
}

}  // namespace tutti
