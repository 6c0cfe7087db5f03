#pragma once

// One layer of an LSTM or a GRU in autograd's graph: a node for all chunks and both directions, so
// that each parameter gets one gradient.
//
// Threads: any; a graph is one thread's. Failure: that of LayerPass; Unsupported for second
// derivatives.

#include <torch/torch.h>

#include "torch/recurrent/recurrent_pass.h"

namespace tutti {

/// `input`: [rows, I], or [T, B, I] where all sequences are as long; `hidden`, `cell`: as those of
/// the result.
RecurrentResult run_layer(RecurrentLayer layer, const torch::Tensor& input,
                          const torch::Tensor& hidden, const torch::Tensor& cell);

}  // namespace tutti
