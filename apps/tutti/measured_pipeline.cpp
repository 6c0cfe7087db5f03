#include "measured_pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "job/wire/rank_set.h"
#include "measured_steps.h"
#include "refusal.h"
#include "run/files/strict_json.h"
#include "tutti/error.h"

namespace tutti::command {
namespace {

constexpr std::int64_t kRoundingNs = 2;  ///< of a start and a duration, as a timeline has them
constexpr double kNanosecondsPerMs = 1e6;
constexpr std::size_t kMostRanges = 8;  ///< of steps, in a text

using Computes = std::vector<MeasuredCompute>;

/// What the workers of a pipeline computed, by place in it.
using Members = std::vector<const Computes*>;

std::vector<int> ranks_of(const MeasuredStep& step) {
  std::vector<int> ranks;
  for (const auto& [rank, computes] : step.workers) ranks.push_back(rank);
  return ranks;
}

Members members_of(const MeasuredStep& step, std::span<const int> ranks) {
  static const Computes kNothing;
  Members members;
  for (const int rank : ranks) {
    const auto at = step.workers.find(rank);
    members.push_back(at == step.workers.end() ? &kNothing : &at->second);
  }
  return members;
}

bool is_empty(const Members& members) {
  return std::ranges::all_of(members, [](const Computes* one) { return one->empty(); });
}

int micro_batches_of(const Members& members) {
  int most = 0;
  for (const auto* computes : members) {
    for (const auto& compute : *computes) most = std::max(most, compute.action.micro_batch + 1);
  }
  return most;
}

/// Every stage lies on one of the members.
bool is_whole(const Members& members, int stages) {
  std::set<int> found;
  std::size_t places = 0;
  for (const auto* computes : members) {
    std::set<int> own;
    for (const auto& compute : *computes) own.insert(compute.action.stage);
    places += own.size();
    found.merge(own);
  }
  return std::ssize(found) == stages && places == found.size();
}

/// The smallest number of neighbouring workers that have all stages between them, wherever they
/// have any; 0 where there is none. All workers of a step have to be there.
int width_of(const MeasuredStep& step, int stages) {
  const auto ranks = ranks_of(step);
  for (std::size_t width = 1; width <= ranks.size(); ++width) {
    if (ranks.size() % width != 0) continue;
    bool fits = false;
    bool is_apart = false;
    for (std::size_t first = 0; first < ranks.size() && !is_apart; first += width) {
      const auto members = members_of(step, std::span(ranks).subspan(first, width));
      if (is_empty(members)) continue;
      fits = true;
      is_apart = !is_whole(members, stages);
    }
    if (fits && !is_apart) return static_cast<int>(width);
  }
  return 0;
}

/// Each micro-batch has been through all stages, and back.
bool is_complete(const Members& members, int stages) {
  std::set<std::pair<int, int>> forwards, inputs, ends;  // of stage and micro-batch
  for (const auto* computes : members) {
    for (const auto& [action, start, end] : *computes) {
      const std::pair which(action.stage, action.micro_batch);
      if (action.work == StageWork::forward) forwards.insert(which);
      if (action.work == StageWork::backward_input) inputs.insert(which);
      if (action.work == StageWork::backward_weight) ends.insert(which);
      if (action.work == StageWork::backward) {
        inputs.insert(which);
        ends.insert(which);
      }
    }
  }
  const auto all = std::int64_t{stages} * micro_batches_of(members);
  return std::ssize(forwards) == all && std::ssize(inputs) == all && std::ssize(ends) == all;
}

bool is_complete(const MeasuredStep& step, int stages) {
  const int width = width_of(step, stages);
  if (width == 0) return false;
  const auto ranks = ranks_of(step);
  for (std::size_t first = 0; first < ranks.size(); first += static_cast<std::size_t>(width)) {
    const auto members =
        members_of(step, std::span(ranks).subspan(first, static_cast<std::size_t>(width)));
    if (!is_empty(members) && !is_complete(members, stages)) return false;
  }
  return true;
}

/// "1-8 10".
std::string steps_text(const MeasuredTrainer& trainer) {
  std::set<std::int64_t> numbers;
  for (const auto& step : trainer.steps) numbers.insert(step.number);
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const auto number : numbers) {
    if (!ranges.empty() && ranges.back().second + 1 == number) {
      ranges.back().second = number;
    } else {
      ranges.emplace_back(number, number);
    }
  }
  std::string text = numbers.size() == 1 ? "step" : "steps";
  const auto shown_ranges = std::min(ranges.size(), kMostRanges);
  for (std::size_t i = 0; i < shown_ranges; ++i) {
    const auto [first, last] = ranges[i];
    text += first == last ? fmt::format(" {}", first) : fmt::format(" {}-{}", first, last);
  }
  return text + (shown_ranges < ranges.size() ? fmt::format(" … {}", *numbers.rbegin()) : "");
}

const MeasuredTrainer& trainer_of(const std::vector<MeasuredTrainer>& trainers,
                                  const MeasuredOptions& options) {
  if (trainers.empty()) {
    throw InvalidArgument(fmt::format(
        "{} has no step with computes of a pipeline: a Trainer with a pipeline records them",
        options.file));
  }
  std::vector<std::string> names;
  for (const auto& trainer : trainers) {
    if (options.trainer == trainer.name) return trainer;
    names.push_back(shown(trainer.name));
  }
  const auto all = fmt::format("{} has pipelines of {}", options.file, fmt::join(names, ", "));
  if (options.trainer) {
    throw Refusal(kUsageStatus, fmt::format("--trainer {}: {}", *options.trainer, all));
  }
  if (trainers.size() > 1) {
    throw Refusal(kUsageStatus, fmt::format("{}: --trainer says which is meant", all));
  }
  return trainers.front();
}

const MeasuredStep& step_of(const MeasuredTrainer& trainer, const MeasuredOptions& options) {
  if (options.step) {
    const auto at = std::ranges::find(trainer.steps, *options.step, &MeasuredStep::number);
    if (at != trainer.steps.end()) return *at;
    throw Refusal(kUsageStatus,
                  fmt::format("--step {}: {} has {} of {}", *options.step, options.file,
                              steps_text(trainer), shown(trainer.name)));
  }
  for (auto step = trainer.steps.rbegin(); step != trainer.steps.rend(); ++step) {
    if (is_complete(*step, trainer.stages)) return *step;
  }
  throw InvalidArgument(fmt::format(
      "{} has no complete step of {}: not every micro-batch has been through all stages and back; "
      "--step draws what there is of one: it has {}",
      options.file, shown(trainer.name), steps_text(trainer)));
}

/// The last of the steps that show which ranks form a pipeline: one that failed early does not.
const MeasuredStep& showing_step(const MeasuredTrainer& trainer, const MeasuredOptions& options) {
  for (auto step = trainer.steps.rbegin(); step != trainer.steps.rend(); ++step) {
    if (width_of(*step, trainer.stages) > 0) return *step;
  }
  throw InvalidArgument(fmt::format(
      "{} does not show which ranks form a pipeline of {}: in no step do neighbours have the "
      "stages 0 to {} between them, each once; the part of a worker may be missing",
      options.file, shown(trainer.name), trainer.stages - 1));
}

std::vector<std::vector<int>> pipelines_of(const MeasuredStep& step, int stages) {
  const int width = width_of(step, stages);
  std::vector<std::vector<int>> pipelines;
  for (const int rank : ranks_of(step)) {
    if (pipelines.empty() || std::ssize(pipelines.back()) == width) pipelines.emplace_back();
    pipelines.back().push_back(rank);
  }
  return pipelines;
}

/// Times of a timeline are rounded, so that neighbours may seem to overlap.
std::vector<TimedAction> actions_of(const Members& members) {
  std::vector<TimedAction> actions;
  std::int64_t first = members.front()->empty() ? 0 : members.front()->front().start_ns;
  for (const auto* computes : members) {
    if (!computes->empty()) first = std::min(first, computes->front().start_ns);
  }
  for (std::size_t place = 0; place < members.size(); ++place) {
    std::int64_t before = first;
    for (const auto& [action, start, end] : *members[place]) {
      const auto begin = before - start <= kRoundingNs ? std::max(start, before) : start;
      before = std::max(begin, end);
      actions.push_back({static_cast<int>(place), action,
                         static_cast<double>(begin - first) / kNanosecondsPerMs,
                         static_cast<double>(before - first) / kNanosecondsPerMs});
    }
  }
  return actions;
}

}  // namespace

PipelineTimeline measured_pipeline(const MeasuredOptions& options) {
  const auto trainers = measured_trainers(options.file);
  const auto& trainer = trainer_of(trainers, options);
  const auto& showing = showing_step(trainer, options);
  const auto& step = step_of(trainer, options);
  const bool shows = width_of(step, trainer.stages) > 0;
  const auto pipelines = pipelines_of(shows ? step : showing, trainer.stages);
  const bool are_several = pipelines.size() > 1;
  const auto name = fmt::format("step {} of {}", step.number, shown(trainer.name));
  if (options.pipeline < 0 || options.pipeline >= std::ssize(pipelines)) {
    throw Refusal(kUsageStatus, fmt::format("--pipeline {}: {} has {}", options.pipeline, name,
                                            are_several ? fmt::format("the pipelines 0 to {}",
                                                                      pipelines.size() - 1)
                                                        : "one pipeline, 0"));
  }
  const auto& ranks = pipelines[static_cast<std::size_t>(options.pipeline)];
  const auto members = members_of(step, ranks);
  RankSet set;
  for (const int rank : ranks) set.insert(rank);
  if (is_empty(members)) {
    throw Refusal(kUsageStatus, fmt::format("--pipeline {}: {} computed nothing in {}",
                                            options.pipeline, ranks_text(set), name));
  }
  const auto title = fmt::format(
      "measured in {}{}{} on {}: {} stages, {} micro-batches", name,
      is_complete(members, trainer.stages) ? "" : " (not complete)",
      are_several ? fmt::format(", pipeline {} of {}", options.pipeline, pipelines.size()) : "",
      ranks_text(set), trainer.stages, micro_batches_of(members));
  try {
    return {title, actions_of(members)};
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}: {}", options.file, name, error.what()));
  }
}

}  // namespace tutti::command
