#pragma once

// What a checkpoint's manifest says of the model and of how it was computed, besides a run's state.
//
// Threads: one. Failure: none.

#include <torch/torch.h>

#include <string>

#include <nlohmann/json.hpp>

#include "run/checkpoint_store.h"

namespace tutti {

/// Name under which the manifest keeps structure_of() the model.
inline constexpr const char* kStructure = "model";
/// What an archive of the model needs besides its tensors: "modules", the names of all that it is
/// made of, and "same_as", tied parameters by name with the name that stands for them.
nlohmann::json structure_of(const torch::nn::Module& module);

/// Name under which the manifest keeps arithmetic_facts().
inline constexpr const char* kArithmetic = "arithmetic";
/// How what the checkpoint was computed with differs from what is here, one difference a line; ""
/// where nothing does, or it does not say.
std::string arithmetic_differences(const Checkpoint& checkpoint);

}  // namespace tutti
