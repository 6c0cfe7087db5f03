#include <fmt/format.h>

#include <array>

#include "run/pipeline/pipeline_walk.h"
#include "tutti/error.h"

namespace tutti {
namespace {

[[noreturn]] void refuse(const PipelineSchedule& schedule, const std::string& text) {
  throw InvalidArgument(fmt::format("a pipeline schedule {}: {}", schedule.name(), text));
}

bool is_among(const StageAction& action, const PipelineSchedule& schedule) {
  return action.work <= StageWork::backward_weight && action.stage >= 0 &&
         action.stage < schedule.stages() && action.micro_batch >= 0 &&
         action.micro_batch < schedule.micro_batches();
}

/// The work that has been seen of each micro-batch on each stage, and how far each stage is.
class Seen {
 public:
  explicit Seen(const PipelineSchedule& schedule)
      : schedule_(schedule),
        done_(static_cast<std::size_t>(schedule.stages()) *
              static_cast<std::size_t>(schedule.micro_batches())),
        next_(static_cast<std::size_t>(schedule.stages())) {}

  void see(int worker, const StageAction& action) {
    auto& done = done_of(action.stage, action.micro_batch);
    const auto before = [&](StageWork work) { return done[static_cast<std::size_t>(work)]; };
    const auto refuse_twice = [&](StageWork work) {
      if (!before(work)) return;
      refuse(schedule_,
             work == action.work
                 ? fmt::format("worker {} has the {} twice", worker, text_of(action))
                 : fmt::format("worker {} has the {} besides the {}", worker, text_of(action),
                               text_of({work, action.stage, action.micro_batch})));
    };
    refuse_twice(action.work);
    if (action.work == StageWork::backward) {
      refuse_twice(StageWork::backward_input);
      refuse_twice(StageWork::backward_weight);
    } else if (action.work != StageWork::forward) {
      refuse_twice(StageWork::backward);
    }
    const auto need = [&](StageWork work) {
      if (before(work)) return;
      refuse(schedule_, fmt::format("worker {} has the {} before the {}", worker, text_of(action),
                                    text_of({work, action.stage, action.micro_batch})));
    };
    if (gives_input(action.work)) need(StageWork::forward);
    if (action.work == StageWork::backward_weight) need(StageWork::backward_input);
    done[static_cast<std::size_t>(action.work)] = true;
    auto& next = next_[static_cast<std::size_t>(action.stage)];
    if (action.work == StageWork::forward) ascend(worker, action, next.forward);
    if (gives_weights(action.work)) ascend(worker, action, next.weights);
  }
  void refuse_missing() {
    for (int s = 0; s < schedule_.stages(); ++s) {
      for (int m = 0; m < schedule_.micro_batches(); ++m) {
        const auto& done = done_of(s, m);
        const auto has = [&](StageWork work) { return done[static_cast<std::size_t>(work)]; };
        const auto missing = [&](StageWork work) {
          const int worker = schedule_.worker_of(s);
          refuse(schedule_,
                 fmt::format("{} lacks the {}",
                             worker < 0 ? "every worker" : fmt::format("worker {}", worker),
                             text_of({work, s, m})));
        };
        if (!has(StageWork::forward)) missing(StageWork::forward);
        if (has(StageWork::backward) || has(StageWork::backward_weight)) continue;
        missing(has(StageWork::backward_input) ? StageWork::backward_weight : StageWork::backward);
      }
    }
  }

 private:
  struct Next {
    int forward = 0;
    int weights = 0;
  };
  using Done = std::array<bool, 4>;  ///< by StageWork
  Done& done_of(int stage, int micro_batch) {
    return done_[static_cast<std::size_t>(stage) *
                     static_cast<std::size_t>(schedule_.micro_batches()) +
                 static_cast<std::size_t>(micro_batch)];
  }
  /// Each list of a stage goes up from `next`; gaps are found by refuse_missing().
  void ascend(int worker, const StageAction& action, int& next) {
    if (action.micro_batch < next) {
      refuse(schedule_, fmt::format("worker {} has the {} after that of micro-batch {}: they must "
                                    "ascend",
                                    worker, text_of(action), next - 1));
    }
    next = action.micro_batch + 1;
  }

  const PipelineSchedule& schedule_;
  std::vector<Done> done_;
  std::vector<Next> next_;
};

void refuse_waits(const PipelineSchedule& schedule) {
  const auto walk = walk_in_units(schedule);
  std::string text;
  for (int w = 0; w < schedule.workers(); ++w) {
    const auto& actions = schedule.actions(w);
    const auto done = walk.times[static_cast<std::size_t>(w)].size();
    if (done == actions.size()) continue;
    const auto& action = actions[done];
    // What it needs of its own stage was checked before.
    const auto need = need_of(action, schedule.stages()).value_or(action);
    text += fmt::format("{}worker {} has the {} next and needs the {}, of worker {}",
                        text.empty() ? "" : "; ", w, text_of(action), text_of(need),
                        schedule.worker_of(need.stage));
  }
  if (!text.empty()) refuse(schedule, "workers wait for one another: " + text);
}

}  // namespace

void check(const PipelineSchedule& schedule) {
  if (schedule.workers() < 1) refuse(schedule, "it has no worker");
  // The places of all stages come first: the rest would blame a stage that is cut for its order.
  for (int w = 0; w < schedule.workers(); ++w) {
    if (schedule.actions(w).empty()) refuse(schedule, fmt::format("worker {} has no stage", w));
    for (const auto& action : schedule.actions(w)) {
      if (!is_among(action, schedule)) {
        refuse(schedule, fmt::format("worker {} has the {}, of {} stages and {} micro-batches", w,
                                     text_of(action), schedule.stages(), schedule.micro_batches()));
      }
      if (const int other = schedule.worker_of(action.stage); other != w) {
        refuse(schedule, fmt::format("worker {} has the {}, and worker {} has others of that stage",
                                     w, text_of(action), other));
      }
    }
  }
  Seen seen(schedule);
  for (int w = 0; w < schedule.workers(); ++w) {
    for (const auto& action : schedule.actions(w)) seen.see(w, action);
  }
  seen.refuse_missing();
  refuse_waits(schedule);
}

}  // namespace tutti
