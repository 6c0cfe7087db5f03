#pragma once

// An LSTM or a GRU cut in chunks of time, each of which runs again in backward: memory for long
// sequences that grows with the chunk, and not with the sequence.
//
//   torch::nn::LSTM lstm(torch::nn::LSTMOptions(256, 256).num_layers(2));  // the program's own
//   auto [y, state] = tutti::run_in_chunks(lstm, x);
//   std::tie(y, state) = tutti::run_in_chunks(lstm, x, state, {.steps = 64});
//
// The module stays as it is: its parameters, their names and its options are read, and results have
// the shapes of its forward(). Layers, directions, biases, batch_first, dropout between layers (in
// training), projections and sequences of different lengths are as there, and dropout draws what it
// would draw there.
//
// What is kept for backward is each layer's input, a byte for each element that dropout may have
// taken, and the state between chunks. Gates, and gradients on their way through time, lie in one
// workspace for a layer, which all chunks use in turn: allocated once in forward, and once in
// backward. Without recomputation gates are kept too.
//
// The same bytes come out with recomputation and without; of the module's forward() results and
// gradients differ by rounding, as products of a chunk's input are taken at once. A parameter gets
// one gradient for all chunks: hooks fire once, and a DataParallel or a Trainer sees nothing new. A
// chunk that runs again is compared by the state that it ends in.
//
// Threads: the one that calls, and in backward the one that runs backward. Failure: InvalidArgument
// for an input, a state or lengths that do not fit the module, for a number of steps that is
// negative, and in backward where a weight or an input was written past autograd; Unsupported for
// what is not dense float32 or float64 on the CPU, for autocast and for second derivatives.

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace tutti {

struct ChunkOptions {
  std::int64_t steps = 0;  ///< time steps of a chunk; 0: ⌈√T⌉ of T
  bool recompute = true;   ///< false: gates of all chunks are kept
  /// [B], integers in 1 … T, in any order; undefined: all sequences last T steps.
  torch::Tensor lengths = {};
  std::string name = "recurrent net";  ///< in errors
};

/// The hidden and the cell state: [layers · directions, B, H] (the first with a projection
/// […, proj_size]). Undefined: zeros.
using LstmState = std::tuple<torch::Tensor, torch::Tensor>;

/// The results of `lstm->forward(input, state)`: [T, B, directions · H] (batch_first: [B, T, …]) of
/// an input [T, B, input_size], and the last states; of `lengths` zeros where a sequence is over,
/// and the states in which each ends. Without `state` that is zeros.
std::tuple<torch::Tensor, LstmState> run_in_chunks(const torch::nn::LSTM& lstm,
                                                   const torch::Tensor& input,
                                                   const std::optional<LstmState>& state = {},
                                                   const ChunkOptions& options = {});

/// The same of a GRU; `state`: [layers · directions, B, H], undefined for zeros.
std::tuple<torch::Tensor, torch::Tensor> run_in_chunks(const torch::nn::GRU& gru,
                                                       const torch::Tensor& input,
                                                       const torch::Tensor& state = {},
                                                       const ChunkOptions& options = {});

using torch::nn::utils::rnn::PackedSequence;

/// The results of forward_with_packed_input(): no row is spent on what is over. `lengths` stays
/// undefined.
std::tuple<PackedSequence, LstmState> run_in_chunks(const torch::nn::LSTM& lstm,
                                                    const PackedSequence& input,
                                                    const std::optional<LstmState>& state = {},
                                                    const ChunkOptions& options = {});

std::tuple<PackedSequence, torch::Tensor> run_in_chunks(const torch::nn::GRU& gru,
                                                        const PackedSequence& input,
                                                        const torch::Tensor& state = {},
                                                        const ChunkOptions& options = {});

}  // namespace tutti
