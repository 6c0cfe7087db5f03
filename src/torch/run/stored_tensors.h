#pragma once

// Tensors of torch as checkpoints hold them.
//
// Threads: one. Failure: Unsupported for a type that a checkpoint cannot hold.

#include <torch/torch.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "run/files/checkpoint_store.h"
#include "run/files/safetensors_format.h"
#include "run/files/safetensors_reader.h"
#include "run/state/state_file.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

bool is_storable(const torch::Tensor& tensor);
/// `what` begins the text: buffer "mask".
void require_storable(const std::string& what, const torch::Tensor& tensor);

/// The tensor's own memory.
TensorView view_of(const std::string& name, const torch::Tensor& tensor);
void append_views(std::vector<TensorView>& views, const NamedTensors& tensors);

torch::ScalarType scalar_type_of(StoredType stored);
/// A tensor of a file, in memory of its own.
torch::Tensor read_tensor(const SafetensorsFile& file, const TensorEntry& entry);
/// All tensors of a file, in memory of their own.
NamedTensors load_tensors(const Checkpoint& checkpoint, StateFile file);

/// Converts tensors to bytes for another worker, and back. Names differ.
std::vector<std::byte> packed(const NamedTensors& tensors);
NamedTensors unpacked(std::span<const std::byte> bytes);

}  // namespace tutti
