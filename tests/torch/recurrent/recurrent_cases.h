#pragma once

// Recurrent nets with random weights, inputs and losses, run by their own forward() and in chunks.

#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch/training.h"
#include "tutti/recurrent.h"

namespace tutti::test::recurrent_cases {

inline bool same_bytes(const torch::Tensor& one, const torch::Tensor& other) {
  if (!one.defined() || !other.defined()) return one.defined() == other.defined();
  const auto a = one.detach().contiguous();
  const auto b = other.detach().contiguous();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

struct Shape {
  std::int64_t layers = 1;
  bool bidirectional = false;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0;
  bool lengths = false;  ///< different ones, in no order
  std::int64_t sequences = 4;
  std::int64_t input = 6;
  std::int64_t hidden = 5;
  std::int64_t projection = 0;
  bool has_state = true;

  std::string text() const {
    return fmt::format(
        "{} layers, bidirectional {}, bias {}, batch first {}, dropout {}, lengths {}", layers,
        bidirectional, bias, batch_first, dropout, lengths);
  }
};

/// The same numbers in either type: what float32 gives is held against what float64 gives.
template <class Module>
class Case {
 public:
  static constexpr bool kLstm = std::is_same_v<Module, torch::nn::LSTM>;
  using Options = std::conditional_t<kLstm, torch::nn::LSTMOptions, torch::nn::GRUOptions>;

  Case(const Shape& shape, std::int64_t steps, torch::ScalarType type) : shape_(shape) {
    torch::manual_seed(17);
    auto options = Options(shape.input, shape.hidden)
                       .num_layers(shape.layers)
                       .bidirectional(shape.bidirectional)
                       .bias(shape.bias)
                       .batch_first(shape.batch_first)
                       .dropout(shape.dropout);
    if constexpr (kLstm) options.proj_size(shape.projection);
    net = Module(options);
    net->to(type);
    const auto leaf = [&](std::vector<std::int64_t> sizes) {
      return torch::randn(sizes).to(type).requires_grad_();
    };
    const auto states = shape.layers * (shape.bidirectional ? 2 : 1);
    const auto width = shape.projection > 0 ? shape.projection : shape.hidden;
    x_ = shape.batch_first ? leaf({shape.sequences, steps, shape.input})
                           : leaf({steps, shape.sequences, shape.input});
    if (shape.has_state) {
      hidden_ = leaf({states, shape.sequences, width});
      if (kLstm) cell_ = leaf({states, shape.sequences, shape.hidden});
    }
    if (!shape.lengths) return;
    lengths_ = torch::randint(1, steps + 1, {shape.sequences}, torch::kInt64);
    lengths_[1] = steps;
    lengths_[0] = 1;
  }

  /// Results, and gradients of leaves(), of the module's own forward().
  TensorList plain() const { return with_gradients(forward()); }
  TensorList in_chunks(const ChunkOptions& options) const {
    return with_gradients(chunks(options));
  }
  TensorList packed(const ChunkOptions& options) const {
    return with_gradients(
        of_packed([&](const auto& input) { return run_in_chunks(net, input, state(), options); }));
  }
  /// Of the results of both, used as in training.
  torch::Tensor loss(const ChunkOptions& options) const { return loss_of(chunks(options)); }
  /// What steps give, and the last hidden state.
  std::pair<torch::Tensor, torch::Tensor> results(bool plain, const ChunkOptions& options) const {
    const auto all = plain ? forward() : chunks(options);
    return {all[0], all[1]};
  }
  TensorList leaves() const {
    TensorList all{x_};
    for (const auto& given : {hidden_, cell_}) {
      if (given.defined()) all.push_back(given);
    }
    for (const auto& parameter : net->parameters()) all.push_back(parameter);
    return all;
  }
  void run_with_state(const torch::Tensor& x, const torch::Tensor& hidden) const {
    if constexpr (kLstm) {
      run_in_chunks(net, x, std::tuple(hidden, hidden));
    } else {
      run_in_chunks(net, x, hidden);
    }
  }

  mutable Module net = nullptr;

 private:
  auto state() const {
    if constexpr (kLstm) {
      return hidden_.defined() ? std::optional(std::tuple(hidden_, cell_)) : std::nullopt;
    } else {
      return hidden_;
    }
  }
  template <class Results>
  static TensorList list_of(const Results& results) {
    const auto& [output, last] = results;
    if constexpr (kLstm) {
      return {output, std::get<0>(last), std::get<1>(last)};
    } else {
      return {output, last};
    }
  }
  template <class Run>
  TensorList of_packed(const Run& run) const {
    namespace rnn = torch::nn::utils::rnn;
    torch::manual_seed(23);
    const auto [output, last] =
        run(rnn::pack_padded_sequence(x_, lengths_, shape_.batch_first, false));
    const auto total = x_.size(shape_.batch_first ? 1 : 0);
    return list_of(std::pair(
        std::get<0>(rnn::pad_packed_sequence(output, shape_.batch_first, 0, total)), last));
  }
  TensorList forward() const {
    if (lengths_.defined()) {
      return of_packed(
          [&](const auto& input) { return net->forward_with_packed_input(input, state()); });
    }
    torch::manual_seed(23);
    return list_of(net->forward(x_, state()));
  }
  TensorList chunks(ChunkOptions options) const {
    options.lengths = lengths_;
    torch::manual_seed(23);
    return list_of(run_in_chunks(net, x_, state(), options));
  }
  static torch::Tensor loss_of(const TensorList& results) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(29);
    auto loss = torch::zeros({}, results[0].options());
    for (const auto& result : results) {
      loss =
          loss + (result * torch::randn(result.sizes(), generator).to(result.scalar_type())).sum();
    }
    return loss;
  }
  TensorList with_gradients(const TensorList& results) const {
    TensorList all;
    for (const auto& result : results) all.push_back(result.detach().clone());
    TensorList wanted;
    for (const auto& leaf : leaves()) {
      if (leaf.requires_grad()) wanted.push_back(leaf);
    }
    auto gradients = torch::autograd::grad({loss_of(results)}, wanted);
    auto next = gradients.begin();
    for (const auto& leaf : leaves()) {
      all.push_back(leaf.requires_grad() ? *next++ : torch::Tensor());
    }
    return all;
  }

  Shape shape_;
  torch::Tensor x_, hidden_, cell_, lengths_;
};

}  // namespace tutti::test::recurrent_cases
