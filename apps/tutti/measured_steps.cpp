#include "measured_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "run/pipeline/stage_action_text.h"
#include "sync/plan/step_name.h"
#include "trace_events.h"
#include "tutti/error.h"
#include "tutti/job.h"

namespace tutti::command {
namespace {

struct Step {
  std::size_t trainer = 0;
  std::int64_t number = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// What one thread of a worker recorded.
struct Thread {
  std::vector<Step> steps;
  std::vector<MeasuredCompute> computes;
};

/// What a worker did in a step.
struct Share {
  std::int64_t start_ns = 0;
  std::vector<MeasuredCompute> computes;
};

class Collector {
 public:
  explicit Collector(const std::string& file) : file_(file) {}

  void take(const TraceEvent& event) {
    if (const auto action = stage_action_of(event.name)) {
      thread_of(event).computes.push_back({*action, event.start_ns, event.end_ns});
    } else if (const auto step = step_name_of(event.name)) {
      const auto trainer = trainers_.try_emplace(step->trained, trainers_.size()).first->second;
      thread_of(event).steps.push_back({trainer, step->number, event.start_ns, event.end_ns});
    }
  }

  std::vector<MeasuredTrainer> result() {
    for (auto& [who, thread] : threads_) {
      deal(who.first, thread);
      thread = {};
    }
    std::vector<MeasuredTrainer> all(trainers_.size());
    for (const auto& [name, trainer] : trainers_) all[trainer].name = name;
    for (auto& [which, shares] : shares_) {
      auto& trainer = all[which.first];
      MeasuredStep step{.number = which.second, .start_ns = shares.begin()->second.start_ns};
      for (auto& [rank, share] : shares) {
        step.start_ns = std::max(step.start_ns, share.start_ns);
        for (const auto& compute : share.computes) {
          trainer.stages = std::max(trainer.stages, compute.action.stage + 1);
        }
        step.workers[rank] = std::move(share.computes);
      }
      trainer.steps.push_back(std::move(step));
    }
    std::erase_if(all, [](const MeasuredTrainer& trainer) { return trainer.stages == 0; });
    std::ranges::sort(all, {}, &MeasuredTrainer::name);
    for (auto& trainer : all) std::ranges::sort(trainer.steps, {}, &MeasuredStep::start_ns);
    return all;
  }

 private:
  Thread& thread_of(const TraceEvent& event) {
    if (event.process < 0 || event.process >= kMaxWorkers) {
      throw Corrupt(fmt::format("{}: {} on worker {}: must be 0 to {}", file_, event.name,
                                event.process, kMaxWorkers - 1));
    }
    return threads_[{static_cast<int>(event.process), event.thread}];
  }

  /// A compute belongs to the innermost step of its thread that was open when it began.
  void deal(int rank, Thread& thread) {
    std::ranges::sort(thread.computes, {}, [](const MeasuredCompute& compute) {
      return std::pair(compute.start_ns, compute.end_ns);
    });
    std::ranges::sort(thread.steps, {},
                      [](const Step& step) { return std::pair(step.start_ns, -step.end_ns); });
    std::vector<std::pair<const Step*, Share*>> open;
    auto next = thread.steps.begin();
    for (const auto& compute : thread.computes) {
      for (; next != thread.steps.end() && next->start_ns <= compute.start_ns; ++next) {
        leave(open, next->start_ns);
        open.emplace_back(&*next, share_of(rank, *next));
      }
      leave(open, compute.start_ns);
      if (!open.empty() && open.back().second != nullptr) {
        open.back().second->computes.push_back(compute);
      }
    }
    for (; next != thread.steps.end(); ++next) share_of(rank, *next);
  }

  static void leave(std::vector<std::pair<const Step*, Share*>>& open, std::int64_t now_ns) {
    while (!open.empty() && open.back().first->end_ns <= now_ns) open.pop_back();
  }

  /// Nothing for what was made again later.
  Share* share_of(int rank, const Step& step) {
    auto& shares = shares_[{step.trainer, step.number}];
    const auto [at, is_new] = shares.try_emplace(rank);
    if (!is_new && at->second.start_ns > step.start_ns) return nullptr;
    at->second = {.start_ns = step.start_ns, .computes = {}};
    return &at->second;
  }

  const std::string& file_;
  std::map<std::string, std::size_t> trainers_;
  std::map<std::pair<int, std::int64_t>, Thread> threads_;  ///< by rank and thread
  /// By Trainer and step, then by rank.
  std::map<std::pair<std::size_t, std::int64_t>, std::map<int, Share>> shares_;
};

}  // namespace

std::vector<MeasuredTrainer> measured_trainers(const std::string& file) {
  Collector collector(file);
  each_trace_event(file, [&](const TraceEvent& event) { collector.take(event); });
  return collector.result();
}

}  // namespace tutti::command
