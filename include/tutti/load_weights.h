#pragma once

// Values of a model's parameters and buffers from a safetensors file, such as Python writes of a
// state_dict:
//
//   safetensors.torch.save_file(model.state_dict(), "weights.safetensors")   # Python
//
//   tutti::load_weights(*model, "weights.safetensors");                      // C++
//
// Call it on every worker, or on rank 0, before the model is wrapped; with a Trainer also inside
// edit().
//
// Threads: one. Failure: Corrupt for a damaged file or index, IoError for one that cannot be read,
// Unsupported for a type of elements that libtorch or Tutti does not know; InvalidArgument names
// all that does not fit. Nothing has changed then.

#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace tutti {

struct LoadWeightsOptions {
  /// The model's name for a tensor that the file has by `name`; empty: it is left out. Without a
  /// function names are equal.
  std::function<std::string(const std::string& name)> rename = {};
  /// A tensor of the model that the file lacks, and one that the model lacks, is an error.
  bool strict = true;
};

/// By their names in the model, in its order; by their names in the file.
struct LoadedWeights {
  std::vector<std::string> missing;     ///< keep their values
  std::vector<std::string> unexpected;  ///< were passed over
};

/// `file` is a safetensors file, or the index of several beside it, with the extension .json
/// ("model.safetensors.index.json", as Hugging Face's libraries write it), of which the tensors are
/// taken that it lists. Shapes have to be equal; numbers of floating point are converted to the
/// model's type, in which large ones may be infinite, as are complex ones; integers have to be of
/// its type. Of a tensor with several names (tied weights, also by set_data()) the file may have
/// any; where it has several, their values have to be equal in the model's type. Tensors of the
/// model may be on a device; what cannot be written in place is named like what does not fit.
LoadedWeights load_weights(torch::nn::Module& module, const std::string& file,
                           const LoadWeightsOptions& options = {});

}  // namespace tutti
