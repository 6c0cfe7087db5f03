#include "tutti/recurrent.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "torch/recurrent/recurrent_layer.h"
#include "tutti/error.h"

namespace tutti {

using torch::Tensor;

namespace {

/// What a module is, whichever it is.
struct Net {
  CellKind kind;
  std::int64_t input_size;
  std::int64_t width;  ///< of what a step gives
  std::int64_t hidden_size;
  std::int64_t layers;
  std::int64_t directions;
  bool bias;
  bool batch_first;
  bool projected;
  double dropout;  ///< 0 outside training
  std::vector<Tensor> weights;
};

template <class Module>
Net net_of(const Module& module, CellKind kind, std::int64_t projection) {
  const auto& options = module.options;
  return {.kind = kind,
          .input_size = options.input_size(),
          .width = projection > 0 ? projection : options.hidden_size(),
          .hidden_size = options.hidden_size(),
          .layers = options.num_layers(),
          .directions = options.bidirectional() ? 2 : 1,
          .bias = options.bias(),
          .batch_first = options.batch_first(),
          .projected = projection > 0,
          .dropout = module.is_training() ? options.dropout() : 0,
          .weights = module.all_weights()};
}

Net net_of(const torch::nn::LSTM& lstm) {
  return net_of(*lstm, CellKind::lstm, lstm->options.proj_size());
}
Net net_of(const torch::nn::GRU& gru) { return net_of(*gru, CellKind::gru, 0); }

std::string error_of(const ChunkOptions& options, const std::string& what) {
  return fmt::format("run_in_chunks \"{}\": {}", options.name, what);
}

void require(bool fits, const ChunkOptions& options, const std::string& what) {
  if (!fits) throw InvalidArgument(error_of(options, what));
}

/// Dense float32 or float64 on the CPU, all of one type.
void require_kind(const Tensor& tensor, const char* what, const Net& net,
                  const ChunkOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw Unsupported(error_of(options, fmt::format("{} is {}", what, why)));
  };
  if (!tensor.is_cpu()) refuse(fmt::format("on {}, and not on the CPU", tensor.device().str()));
  if (tensor.layout() != torch::kStrided) refuse("not dense");
  const auto type = tensor.scalar_type();
  if (type != torch::kFloat32 && type != torch::kFloat64) {
    refuse(fmt::format("of {}, neither float32 nor float64: run the module itself",
                       c10::toString(type)));
  }
  require(type == net.weights.front().scalar_type(), options,
          fmt::format("{} is of {}, weights of {}", what, c10::toString(type),
                      c10::toString(net.weights.front().scalar_type())));
}

void require_net(const Net& net, const ChunkOptions& options) {
  require(options.steps >= 0, options, fmt::format("{} steps in a chunk", options.steps));
  if (at::autocast::is_autocast_enabled(at::kCPU)) {
    throw Unsupported(error_of(options, "autocast is on: switch it off here, or run the module"));
  }
  const auto count = (net.bias ? 4 : 2) + (net.projected ? 1 : 0);
  require(static_cast<std::int64_t>(net.weights.size()) == count * net.layers * net.directions,
          options, "the module's parameters are not those that its options name");
  for (const auto& weight : net.weights) require_kind(weight, "a weight", net, options);
}

void require_input(const Tensor& input, std::int64_t rank, const Net& net,
                   const ChunkOptions& options) {
  require(input.defined(), options, "the input is undefined");
  require_kind(input, "the input", net, options);
  require(input.dim() == rank && input.size(-1) == net.input_size, options,
          fmt::format("an input of shape {}: {} dims are expected, the last of {}",
                      fmt::join(input.sizes(), "x"), rank, net.input_size));
  require(input.numel() > 0, options,
          fmt::format("an input of shape {}, which has no sequence, or none of a step: leave the "
                      "call out where there are none",
                      fmt::join(input.sizes(), "x")));
}

std::vector<CellWeights> weights_of(const Net& net, std::int64_t layer) {
  std::vector<CellWeights> directions;
  const auto count = static_cast<std::int64_t>(net.weights.size()) / net.layers / net.directions;
  for (std::int64_t d = 0; d < net.directions; ++d) {
    auto next = net.weights.begin() + (layer * net.directions + d) * count;
    CellWeights weights{.input = *next++, .hidden = *next++};
    if (net.bias) weights.input_bias = *next++;
    if (net.bias) weights.hidden_bias = *next++;
    if (net.projected) weights.projection = *next++;
    directions.push_back(std::move(weights));
  }
  return directions;
}

/// A state that was given or, where it was not, zeros.
Tensor state_of(const Tensor& given, const char* what, std::int64_t width, const TimeSteps& steps,
                const Net& net, const ChunkOptions& options) {
  const std::vector<std::int64_t> shape{net.layers * net.directions, steps.sequences(), width};
  if (!given.defined()) {
    return torch::zeros(shape, net.weights.front().options());
  }
  require_kind(given, what, net, options);
  require(given.sizes() == shape, options,
          fmt::format("{} of shape {}, not {}", what, fmt::join(given.sizes(), "x"),
                      fmt::join(shape, "x")));
  return given;
}

std::int64_t chunk_of(std::int64_t steps, const ChunkOptions& options) {
  if (options.steps > 0) return std::min(options.steps, steps);
  return static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(steps))));
}

struct Result {
  Tensor output, hidden, cell;
};

/// All layers; `input`: [T, B, …] or, of sequences of different lengths, [rows, …].
Result run(const Net& net, Tensor input, const TimeSteps& steps, Tensor hidden, Tensor cell,
           const ChunkOptions& options) {
  hidden = state_of(hidden, "the hidden state", net.width, steps, net, options);
  const bool has_cell = net.kind == CellKind::lstm;
  if (has_cell) cell = state_of(cell, "the cell state", net.hidden_size, steps, net, options);
  std::vector<Tensor> last_hidden;
  std::vector<Tensor> last_cell;
  for (std::int64_t l = 0; l < net.layers; ++l) {
    RecurrentLayer layer{.name = options.name,
                         .kind = net.kind,
                         .recompute = options.recompute,
                         .steps = steps,
                         .directions = weights_of(net, l)};
    if (l > 0 && net.dropout > 0) {
      // Drawn as torch::dropout() does: all at once, and nothing where everything is dropped.
      layer.kept = torch::zeros(input.sizes(), torch::kBool);
      if (net.dropout < 1) layer.kept.bernoulli_(1 - net.dropout);
      layer.scale = net.dropout < 1 ? 1 / (1 - net.dropout) : 0;
    }
    const auto of_layer = [&](const Tensor& state) {
      return state.defined() ? state.narrow(0, l * net.directions, net.directions) : state;
    };
    auto result = run_layer(std::move(layer), input, of_layer(hidden), of_layer(cell));
    input = std::move(result.output);
    last_hidden.push_back(std::move(result.hidden));
    last_cell.push_back(std::move(result.cell));
  }
  return {std::move(input), torch::cat(last_hidden), has_cell ? torch::cat(last_cell) : Tensor()};
}

/// Sequences in another order, along `dim`.
Tensor ordered(const Tensor& tensor, const Tensor& order, std::int64_t dim = 1) {
  return tensor.defined() && order.defined() ? tensor.index_select(dim, order) : tensor;
}

std::pair<PackedSequence, Result> run_packed(const Net& net, const PackedSequence& input,
                                             const Tensor& hidden, const Tensor& cell,
                                             const ChunkOptions& options) {
  require_input(input.data(), 2, net, options);
  const auto sizes = input.batch_sizes().to(torch::kInt64).contiguous();
  const std::vector<std::int64_t> counts(sizes.const_data_ptr<std::int64_t>(),
                                         sizes.const_data_ptr<std::int64_t>() + sizes.numel());
  require(!counts.empty() && counts.back() > 0 && std::ranges::is_sorted(counts, std::greater()),
          options, "a packed sequence whose batch sizes grow, or end in 0");
  const TimeSteps steps(counts, chunk_of(static_cast<std::int64_t>(counts.size()), options));
  require(steps.rows() == input.data().size(0), options,
          fmt::format("a packed sequence of {} rows, whose batch sizes have {}",
                      input.data().size(0), steps.rows()));
  auto result = run(net, input.data(), steps, ordered(hidden, input.sorted_indices()),
                    ordered(cell, input.sorted_indices()), options);
  result.hidden = ordered(result.hidden, input.unsorted_indices());
  result.cell = ordered(result.cell, input.unsorted_indices());
  PackedSequence output(result.output, input.batch_sizes(), input.sorted_indices(),
                        input.unsorted_indices());
  return {std::move(output), std::move(result)};
}

Result run_padded(const Net& net, const Tensor& input, const Tensor& hidden, const Tensor& cell,
                  const ChunkOptions& options) {
  require_net(net, options);
  require_input(input, 3, net, options);
  const auto steps = input.size(net.batch_first ? 1 : 0);
  const auto sequences = input.size(net.batch_first ? 0 : 1);
  if (!options.lengths.defined()) {
    const TimeSteps all(steps, sequences, chunk_of(steps, options));
    auto result =
        run(net, net.batch_first ? input.transpose(0, 1) : input, all, hidden, cell, options);
    if (net.batch_first) result.output = result.output.transpose(0, 1);
    return result;
  }
  require(c10::isIntegralType(options.lengths.scalar_type(), false) && options.lengths.is_cpu() &&
              options.lengths.dim() == 1 && options.lengths.size(0) == sequences,
          options,
          fmt::format("lengths: {} integers are expected, one for each sequence", sequences));
  const auto lengths = options.lengths.to(torch::kInt64);
  require(lengths.min().item<std::int64_t>() >= 1 && lengths.max().item<std::int64_t>() <= steps,
          options,
          fmt::format("lengths from {} to {}, of {} steps", lengths.min().item<std::int64_t>(),
                      lengths.max().item<std::int64_t>(), steps));
  namespace rnn = torch::nn::utils::rnn;
  auto [packed, result] =
      run_packed(net, rnn::pack_padded_sequence(input, lengths, net.batch_first, false), hidden,
                 cell, options);
  result.output = std::get<0>(rnn::pad_packed_sequence(packed, net.batch_first, 0, steps));
  return result;
}

std::pair<Tensor, Tensor> parts_of(const std::optional<LstmState>& state) {
  return state ? std::pair(std::get<0>(*state), std::get<1>(*state)) : std::pair<Tensor, Tensor>();
}

void require_no_lengths(const Net& net, const ChunkOptions& options) {
  require_net(net, options);
  require(!options.lengths.defined(), options, "lengths of a packed sequence, which has its own");
}

}  // namespace

std::tuple<Tensor, LstmState> run_in_chunks(const torch::nn::LSTM& lstm, const Tensor& input,
                                            const std::optional<LstmState>& state,
                                            const ChunkOptions& options) {
  const auto [hidden, cell] = parts_of(state);
  auto result = run_padded(net_of(lstm), input, hidden, cell, options);
  return {std::move(result.output), {std::move(result.hidden), std::move(result.cell)}};
}

std::tuple<Tensor, Tensor> run_in_chunks(const torch::nn::GRU& gru, const Tensor& input,
                                         const Tensor& state, const ChunkOptions& options) {
  auto result = run_padded(net_of(gru), input, state, {}, options);
  return {std::move(result.output), std::move(result.hidden)};
}

std::tuple<PackedSequence, LstmState> run_in_chunks(const torch::nn::LSTM& lstm,
                                                    const PackedSequence& input,
                                                    const std::optional<LstmState>& state,
                                                    const ChunkOptions& options) {
  const auto net = net_of(lstm);
  require_no_lengths(net, options);
  const auto [hidden, cell] = parts_of(state);
  auto [output, result] = run_packed(net, input, hidden, cell, options);
  return {std::move(output), {std::move(result.hidden), std::move(result.cell)}};
}

std::tuple<PackedSequence, Tensor> run_in_chunks(const torch::nn::GRU& gru,
                                                 const PackedSequence& input, const Tensor& state,
                                                 const ChunkOptions& options) {
  const auto net = net_of(gru);
  require_no_lengths(net, options);
  auto [output, result] = run_packed(net, input, state, {}, options);
  return {std::move(output), std::move(result.hidden)};
}

}  // namespace tutti
