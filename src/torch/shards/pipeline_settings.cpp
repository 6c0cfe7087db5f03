#include "torch/shards/pipeline_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "tutti/error.h"

namespace tutti {
namespace {

/// Shards one after another through all stages, which one worker has.
PipelineSchedule on_one_worker(int stages, int shards) {
  std::vector<StageAction> actions;
  for (int m = 0; m < shards; ++m) {
    for (int s = 0; s < stages; ++s) actions.push_back({StageWork::forward, s, m});
    for (int s = stages - 1; s >= 0; --s) actions.push_back({StageWork::backward, s, m});
  }
  return PipelineSchedule::custom("one worker", stages, shards, {std::move(actions)});
}

void require_shape(const Pipeline& pipeline) {
  const auto layers = static_cast<int>(pipeline.layers.size());
  if (pipeline.stages == 0) {
    throw InvalidArgument("Pipeline::stages is 0: say into how many the layers are cut");
  }
  if (pipeline.stages < 1 || pipeline.stages > layers) {
    throw InvalidArgument(
        fmt::format("a pipeline of {} stages and {} layers: a stage has at least "
                    "one layer, and there is at least one stage",
                    pipeline.stages, layers));
  }
  for (int k = 0; k < layers; ++k) {
    if (!pipeline.layers[static_cast<std::size_t>(k)]) {
      throw InvalidArgument(fmt::format("layer {} of the pipeline is an empty function", k));
    }
  }
  if (pipeline.workers < 0 || pipeline.workers > pipeline.stages) {
    throw InvalidArgument(
        fmt::format("{} workers of a pipeline of {} stages: each has at least one",
                    pipeline.workers, pipeline.stages));
  }
  if (!pipeline.own_schedule && pipeline.schedule == "interleaved" && pipeline.workers == 0) {
    throw InvalidArgument(
        fmt::format("an interleaved pipeline of {} stages: say how many workers share them "
                    "(Pipeline::workers), each of which has several",
                    pipeline.stages));
  }
  if (pipeline.cuts.empty()) return;
  bool ascends = pipeline.cuts.size() + 1 == static_cast<std::size_t>(pipeline.stages);
  int before = 0;
  for (const int cut : pipeline.cuts) {
    ascends = ascends && cut > before && cut < layers;
    before = cut;
  }
  if (ascends) return;
  throw InvalidArgument(
      fmt::format("cuts [{}] of {} layers into {} stages: they are the first layers of all stages "
                  "but the first one: {} ascending {} from 1 to {}",
                  fmt::join(pipeline.cuts, ", "), layers, pipeline.stages, pipeline.stages - 1,
                  pipeline.stages == 2 ? "number" : "numbers", layers - 1));
}

void require_company(const TrainerOptions& options) {
  const auto refuse = [](const std::string& what) {
    throw Unsupported(fmt::format("{} with a pipeline (docs/pipeline.md)", what));
  };
  if (options.compression.codec) refuse("a codec");
  if (options.averaging) refuse("averaging");
  if (options.per_replica) refuse("per-replica parameters");
}

/// A parameter is of one place among the workers of all pipelines.
void require_same_places(const PipelineSchedule& one, const PipelineSchedule& other) {
  for (int s = 0; s < one.stages(); ++s) {
    if (one.worker_of(s) == other.worker_of(s)) continue;
    throw InvalidArgument(
        fmt::format("schedule \"{}\" has stage {} on worker {}, schedule \"{}\" on worker {}: all "
                    "pipelines have a stage on the same one",
                    one.text(), s, one.worker_of(s), other.text(), other.worker_of(s)));
  }
}

}  // namespace

int workers_of(const Pipeline& pipeline) {
  return pipeline.workers == 0 ? pipeline.stages : pipeline.workers;
}

int workers_per_shard(const TrainerOptions& options) {
  return options.pipeline ? workers_of(*options.pipeline) : 1;
}

std::vector<ShardRange> assignment_of(const TrainerOptions& options, int workers) {
  const int each = workers_per_shard(options);
  const int teams = workers / each;
  if (!options.speeds.empty() && options.speeds.size() != static_cast<std::size_t>(teams)) {
    throw InvalidArgument(fmt::format("{} speeds for {} {}", options.speeds.size(), teams,
                                      options.pipeline ? "pipelines" : "workers"));
  }
  const auto ranges = options.speeds.empty() ? assign_shards(options.shards, teams)
                                             : assign_shards(options.shards, options.speeds);
  std::vector<ShardRange> of_workers;
  for (const auto& range : ranges) of_workers.insert(of_workers.end(), each, range);
  return of_workers;
}

void require_pipeline(const TrainerOptions& options, const Group& group) {
  if (!options.pipeline) return;
  require_shape(*options.pipeline);
  require_company(options);
  const int workers = workers_per_shard(options);
  if (group.size() % workers != 0) {
    throw InvalidArgument(fmt::format("{} workers for pipelines of {}: start a multiple of {}",
                                      group.size(), workers, workers));
  }
  std::optional<PipelineSchedule> before;
  for (const auto& range : assignment_of(options, group.size())) {
    if (range.count() == 0) continue;
    const auto schedule = schedule_of(*options.pipeline, static_cast<int>(range.count()));
    const bool fits = schedule.workers() == workers &&
                      schedule.stages() == options.pipeline->stages &&
                      schedule.micro_batches() == range.count();
    if (fits) {
      require_same_places(before.value_or(schedule), schedule);
      before = schedule;
      continue;
    }
    throw InvalidArgument(
        fmt::format("schedule \"{}\", where {} stages on {} workers have {} shards",
                    schedule.text(), options.pipeline->stages, workers, range.count()));
  }
}

std::vector<int> stage_bounds(const Pipeline& pipeline) {
  const auto layers = static_cast<int>(pipeline.layers.size());
  std::vector<int> bounds = {0};
  for (int s = 1; s < pipeline.stages; ++s) {
    const auto k = static_cast<std::size_t>(s - 1);
    bounds.push_back(pipeline.cuts.empty() ? s * layers / pipeline.stages : pipeline.cuts[k]);
  }
  bounds.push_back(layers);
  return bounds;
}

PipelineSchedule schedule_of(const Pipeline& pipeline, int shards) {
  if (pipeline.own_schedule) return pipeline.own_schedule(shards);
  const int workers = workers_of(pipeline);
  if (workers == 1) return on_one_worker(pipeline.stages, shards);
  return PipelineSchedule::named(pipeline.schedule, workers, pipeline.stages, shards);
}

std::string text_of(const Pipeline& pipeline) {
  auto text = fmt::format("{}, stages of {} layers from [{}]",
                          pipeline.own_schedule ? "a schedule of its own" : pipeline.schedule,
                          pipeline.layers.size(), fmt::join(stage_bounds(pipeline), ", "));
  if (!pipeline.shared.empty()) text += fmt::format(", {} shared", pipeline.shared.size());
  return text;
}

}  // namespace tutti
