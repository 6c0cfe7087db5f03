#pragma once

// Facts of a checkpoint's manifest about the model and its arithmetic, besides a run's state.
//
// Threads: one. Failure: none.

#include <torch/torch.h>

#include <string>

#include <nlohmann/json.hpp>

#include "run/files/checkpoint_store.h"

namespace tutti {

/// Name under which the manifest keeps structure_of() the model.
inline constexpr const char* kStructure = "model";
/// The structure that an archive of the model needs besides its tensors: "modules", the names of
/// all its modules, and "same_as", the names of tied parameters with the name that stands for them.
nlohmann::json structure_of(const torch::nn::Module& module);

/// Name under which the manifest keeps what it has of layers that are split over workers, by layer.
inline constexpr const char* kSplitLayers = "split layers";

/// Name under which the manifest keeps arithmetic_facts().
inline constexpr const char* kArithmetic = "arithmetic";
/// Differences between the checkpoint's arithmetic and the present one, one a line; "" where there
/// is none, or the checkpoint does not contain it.
std::string arithmetic_differences(const Checkpoint& checkpoint);

}  // namespace tutti
