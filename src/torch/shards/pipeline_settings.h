#pragma once

// What a Trainer's pipeline options mean for its group, and which shards its workers compute.
//
// Pure functions. Failure: InvalidArgument and Unsupported, as documented at each.

#include <cstdint>
#include <string>
#include <vector>

#include "sync/plan/assignment.h"
#include "tutti/group.h"
#include "tutti/trainer.h"

namespace tutti {

/// Workers of one pipeline.
int workers_of(const Pipeline& pipeline);
/// Neighbouring ranks that compute a shard together; 1 without a pipeline.
int workers_per_shard(const TrainerOptions& options);
/// The shards of each worker, by rank: those of one pipeline have the same.
std::vector<ShardRange> assignment_of(const TrainerOptions& options, int workers);

/// Throws for a pipeline that makes no sense, or that goes with no other of the options, before
/// anything is made.
void require_pipeline(const TrainerOptions& options, const Group& group);

/// The first layer of each stage, and behind them the number of layers.
std::vector<int> stage_bounds(const Pipeline& pipeline);

/// The order of a pipeline's calls for so many shards of it, at least 1.
PipelineSchedule schedule_of(const Pipeline& pipeline, int shards);

/// Tells pipelines apart that workers must have alike.
std::string text_of(const Pipeline& pipeline);

}  // namespace tutti
