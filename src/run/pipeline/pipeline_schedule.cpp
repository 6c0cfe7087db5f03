#include "tutti/pipeline_schedule.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "kernels/hash.h"
#include "run/pipeline/pipeline_kinds.h"
#include "run/pipeline/pipeline_walk.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// A step of more actions than that is a mistake, and would take gigabytes.
constexpr std::int64_t kMostActions = 1 << 22;

void require_numbers(std::string_view kind, int stages, int micro_batches) {
  if (stages < 1) {
    throw InvalidArgument(
        fmt::format("a pipeline schedule {}: {} stages: must be 1 or more", kind, stages));
  }
  if (micro_batches < 1) {
    throw InvalidArgument(fmt::format("a pipeline schedule {}: {} micro-batches: must be 1 or more",
                                      kind, micro_batches));
  }
  if (std::int64_t{stages} * micro_batches > kMostActions) {
    throw InvalidArgument(
        fmt::format("a pipeline schedule {}: {} stages · {} micro-batches: more than {}", kind,
                    stages, micro_batches, kMostActions));
  }
}

std::string_view name_of(StageWork work) {
  switch (work) {
    case StageWork::forward:
      return "forward";
    case StageWork::backward:
      return "backward";
    case StageWork::backward_input:
      return "backward (input)";
    case StageWork::backward_weight:
      return "backward (weights)";
  }
  return "unknown work";
}

std::string hash_of(const std::vector<std::vector<StageAction>>& actions_of_workers) {
  Sha256 hash;
  for (const auto& actions : actions_of_workers) {
    std::string text;
    for (const auto& [work, stage, micro_batch] : actions) {
      text += fmt::format("{} {} {},", static_cast<int>(work), stage, micro_batch);
    }
    text += ';';
    hash.update(text.data(), text.size());
  }
  return hash.hex().substr(0, 16);
}

}  // namespace

std::string text_of(const StageAction& action) {
  return fmt::format("{} of stage {}, micro-batch {}", name_of(action.work), action.stage,
                     action.micro_batch);
}

PipelineSchedule::PipelineSchedule(std::string name, int stages, int micro_batches,
                                   std::vector<std::vector<StageAction>> actions)
    : name_(std::move(name)),
      micro_batches_(micro_batches),
      worker_of_(static_cast<std::size_t>(stages), -1),
      actions_(std::move(actions)) {
  for (int w = 0; w < workers(); ++w) {
    for (const auto& action : actions_[static_cast<std::size_t>(w)]) {
      if (action.stage < 0 || action.stage >= stages) continue;
      auto& worker = worker_of_[static_cast<std::size_t>(action.stage)];
      if (worker < 0) worker = w;
    }
  }
}

PipelineSchedule PipelineSchedule::gpipe(int stages, int micro_batches) {
  require_numbers("gpipe", stages, micro_batches);
  return {"gpipe", stages, micro_batches, gpipe_actions(stages, micro_batches)};
}

PipelineSchedule PipelineSchedule::one_f_one_b(int stages, int micro_batches) {
  require_numbers("1f1b", stages, micro_batches);
  return {"1f1b", stages, micro_batches, one_f_one_b_actions(stages, micro_batches)};
}

PipelineSchedule PipelineSchedule::interleaved(int workers, int stages_per_worker,
                                               int micro_batches) {
  constexpr std::string_view kKind = "interleaved";
  if (workers < 1) {
    throw InvalidArgument(
        fmt::format("a pipeline schedule interleaved: {} workers: must be 1 or more", workers));
  }
  if (stages_per_worker < 2) {
    throw InvalidArgument(
        fmt::format("a pipeline schedule interleaved: {} stages per worker: must be 2 or more; "
                    "with one stage per worker it is 1f1b",
                    stages_per_worker));
  }
  if (std::int64_t{workers} * stages_per_worker > kMostActions) {
    throw InvalidArgument(
        fmt::format("a pipeline schedule interleaved: {} workers · {} stages: more than {}",
                    workers, stages_per_worker, kMostActions));
  }
  require_numbers(kKind, workers * stages_per_worker, micro_batches);
  if (const int over = micro_batches % workers; over != 0) {
    const int less = micro_batches - over;
    throw InvalidArgument(fmt::format(
        "a pipeline schedule interleaved: {} micro-batches on {} workers: must be a multiple of "
        "the workers; {}{} would do",
        micro_batches, workers, less > 0 ? fmt::format("{} or ", less) : "", less + workers));
  }
  return {std::string(kKind), workers * stages_per_worker, micro_batches,
          interleaved_actions(workers, stages_per_worker, micro_batches)};
}

PipelineSchedule PipelineSchedule::zb_h1(int stages, int micro_batches) {
  require_numbers("zb-h1", stages, micro_batches);
  return {"zb-h1", stages, micro_batches, zb_h1_actions(stages, micro_batches)};
}

PipelineSchedule PipelineSchedule::custom(
    std::string name, int stages, int micro_batches,
    std::vector<std::vector<StageAction>> actions_of_workers) {
  if (name.empty()) throw InvalidArgument("a pipeline schedule of one's own needs a name");
  require_numbers(name, stages, micro_batches);
  PipelineSchedule schedule(std::move(name), stages, micro_batches, std::move(actions_of_workers));
  check(schedule);
  schedule.hash_ = hash_of(schedule.actions_);
  return schedule;
}

PipelineSchedule PipelineSchedule::named(std::string_view kind, int workers, int stages,
                                         int micro_batches) {
  const bool one_each = kind == "gpipe" || kind == "1f1b" || kind == "zb-h1";
  if (!one_each && kind != "interleaved") {
    throw InvalidArgument(
        fmt::format("a pipeline schedule \"{}\": must be gpipe, 1f1b, interleaved or zb-h1", kind));
  }
  require_numbers(kind, stages, micro_batches);
  if (workers == 0) workers = stages;
  if (workers < 0) {
    throw InvalidArgument(
        fmt::format("a pipeline schedule {}: {} workers: must be 1 or more", kind, workers));
  }
  if (one_each && workers != stages) {
    throw InvalidArgument(
        fmt::format("a pipeline schedule {}: {} stages on {} workers: must be one stage for each; "
                    "interleaved has several",
                    kind, stages, workers));
  }
  if (kind == "gpipe") return gpipe(stages, micro_batches);
  if (kind == "1f1b") return one_f_one_b(stages, micro_batches);
  if (kind == "zb-h1") return zb_h1(stages, micro_batches);
  if (stages % workers != 0) {
    throw InvalidArgument(
        fmt::format("a pipeline schedule interleaved: {} stages on {} workers: must be a multiple "
                    "of the workers",
                    stages, workers));
  }
  return interleaved(workers, stages / workers, micro_batches);
}

int PipelineSchedule::worker_of(int stage) const {
  if (stage < 0 || stage >= stages()) {
    throw InvalidArgument(fmt::format("{}: there is no stage {}", text(), stage));
  }
  return worker_of_[static_cast<std::size_t>(stage)];
}

std::vector<int> PipelineSchedule::stages_of(int worker) const {
  actions(worker);
  std::vector<int> own;
  for (int s = 0; s < stages(); ++s) {
    if (worker_of(s) == worker) own.push_back(s);
  }
  return own;
}

const std::vector<StageAction>& PipelineSchedule::actions(int worker) const {
  if (worker < 0 || worker >= workers()) {
    throw InvalidArgument(fmt::format("{}: there is no worker {}", text(), worker));
  }
  return actions_[static_cast<std::size_t>(worker)];
}

std::string PipelineSchedule::text() const {
  return fmt::format("{}{}: {} stages on {} workers, {} micro-batches", name_,
                     hash_.empty() ? "" : fmt::format(" ({})", hash_), stages(), workers(),
                     micro_batches_);
}

}  // namespace tutti
