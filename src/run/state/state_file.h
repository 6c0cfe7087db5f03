#pragma once

// The files of a checkpoint, in the order in which a step log lists what they hold.

#include <cstdint>
#include <map>
#include <vector>

#include "run/state/tensor_view.h"

namespace tutti {

enum class StateFile : std::uint8_t {
  parameters,
  masters,
  optimizer,
  buffers,
  averages,
  residuals,
  per_replica,
  averaging,
  shard_states,
  split,
  kept
};

struct StateFileTraits {
  const char* name;
  const char* digest_prefix = "";  ///< of its tensors' names in a step log
  const char* digest_suffix = "";
  /// load() fills its tensors where they lie. Of the others the checkpoint decides names and
  /// shapes: a part reads them.
  bool is_filled = true;
  bool is_logged = true;
  /// Its tensors lie in memory that outlives a Run (RunState::of_run()).
  bool outlives_run = false;
};

constexpr StateFileTraits traits_of(StateFile file) {
  switch (file) {
    case StateFile::parameters:
      return {.name = "parameters.safetensors", .outlives_run = true};
    case StateFile::masters:
      return {.name = "masters.safetensors", .digest_suffix = "/master", .outlives_run = true};
    case StateFile::optimizer:
      return {.name = "optimizer.safetensors", .outlives_run = true};
    case StateFile::buffers:
      return {"buffers.safetensors", "buffer:"};
    case StateFile::averages:
      return {.name = "averages.safetensors", .digest_suffix = "/average", .outlives_run = true};
    case StateFile::residuals:
      return {"residuals.safetensors"};
    case StateFile::per_replica:
      return {"per_replica.safetensors"};
    case StateFile::averaging:
      return {"averaging.safetensors"};
    case StateFile::shard_states:
      return {.name = "shard_states.safetensors", .is_filled = false, .is_logged = false};
    case StateFile::split:
      return {.name = "split.safetensors", .is_filled = false, .is_logged = false};
    case StateFile::kept:
      return {.name = "kept.safetensors", .digest_prefix = "kept:", .is_filled = false};
  }
  return {""};
}
constexpr const char* name_of(StateFile file) { return traits_of(file).name; }

/// Tensors by file. A file that is here is written, even without a tensor.
using StateTensors = std::map<StateFile, std::vector<TensorView>>;

}  // namespace tutti
