#pragma once

// Which modules of a model are in train() and which in eval().
//
// Pure functions.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

/// 1 for each module in train(), 0 for one in eval(): the model itself, then all that it is made
/// of.
std::vector<std::uint8_t> modes_of(const torch::nn::Module& model);
/// The name of the k-th module in texts: `module "1"`, or "the model".
std::string module_text(const torch::nn::Module& model, std::size_t k);

}  // namespace tutti
