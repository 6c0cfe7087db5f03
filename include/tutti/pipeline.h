#pragma once

// A model that is cut into stages, on workers one behind another: each shard of a Trainer's step
// runs through all of them, and while one stage computes a shard, the others compute others.
//
//   tutti::Pipeline pipeline;                       // layers in their order, each a module,
//   for (auto& block : blocks) pipeline.layers.push_back(tutti::pipeline_layer(block));
//   pipeline.layers.push_back([&](const tutti::TensorList& x) -> tutti::TensorList {  // or called
//     return {head->forward(x.at(0))};
//   });
//   pipeline.stages = 2;
//   tutti::Trainer trainer(job, *model, tutti::Adam{.lr = 3e-4},
//                          {.shards = 8, .seed = 1, .pipeline = pipeline});
//   trainer.step([&](tutti::Shard& shard) -> tutti::TensorList { … return {x}; },  // first stage
//                [&](tutti::Shard& shard, const tutti::TensorList& y) {             // last stage
//                  return shard.loss(cross_entropy(y.at(0), …), weight);
//                });
//
// The bytes of parameters after a step are those of a Trainer without a pipeline whose closure does
// all of it, for the same shards and seed: cuts, schedule, stages and the number of pipelines
// decide nothing (docs/pipeline.md names what autograd cannot keep).
//
// What a layer gives is all that later layers get. A tensor that a later stage needs is handed
// through: its gradient comes back the same way. Parameters may be read by several stages; one
// whose first stage depends on the shard is named in `shared`. The CPU's default generator and
// buffers that the shard has changed travel with it.
//
// Threads: a value. Failure: InvalidArgument where a Trainer is made with one that makes no sense.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/pipeline_schedule.h"
#include "tutti/tensors.h"

namespace tutti {

/// Some of a model's layers: tensors in and out, on the CPU, any number, of any type; those that
/// are floating-point and need a gradient get one. Tensors that shared memory come to the next
/// stage apart, and InvalidArgument is what a change of them in place there ends in.
using PipelineLayer = std::function<TensorList(const TensorList& inputs)>;

struct Pipeline {
  std::vector<PipelineLayer> layers = {};
  /// S, 1 … the number of layers; to be given.
  int stages = 0;
  /// The first layer of each stage but the first one, ascending; empty: about equal numbers.
  std::vector<int> cuts = {};
  /// "gpipe", "1f1b", "interleaved" or "zb-h1": PipelineSchedule says what they cost.
  std::string schedule = "1f1b";
  /// Workers of one pipeline, 0: one per stage. Its neighbouring ranks; the group's size is a
  /// multiple of it, and each multiple a pipeline of its own that computes a share of the shards.
  /// "interleaved" needs it: stage s is on worker s modulo `workers`. 1: all stages on one.
  int workers = 0;
  /// An order of the program's own, for so many shards of one pipeline, instead of `schedule`:
  /// PipelineSchedule::custom, alike on all workers.
  std::function<PipelineSchedule(int micro_batches)> own_schedule = {};
  /// Parameters that layers of several stages read, and of which the shard's data decide which
  /// layer is the first one to, as where layers are left out at random: the first stage hands in
  /// their gradients, which the others send it. Without being named here such a parameter is
  /// InvalidArgument in a step in which two stages were the first ones. In the model.
  TensorList shared = {};
};

/// A module's forward as a layer: of the first tensor, the others are handed through behind it.
template <class Module>
PipelineLayer pipeline_layer(Module module) {
  return [module = std::move(module)](const TensorList& inputs) mutable {
    TensorList outputs = inputs;
    outputs.at(0) = module->forward(inputs.at(0));
    return outputs;
  };
}

}  // namespace tutti
