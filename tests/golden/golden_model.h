#pragma once

// The model of the golden runs. Nothing in it depends on the processor or on libtorch's version:
// its numbers come from number_of(), and its gradients are c·(p − t), element by element, from
// additions and multiplications alone, each rounded once as IEEE 754 says. They still have all the
// bits that a sum in another order would change.

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "exactness/choices.h"

namespace tutti::test::golden {

using exact::number_of;

/// In [−1, 1), a multiple of 2⁻²³.
inline double number_at(std::uint64_t seed, std::int64_t index) {
  const auto drawn = number_of(seed, static_cast<std::uint64_t>(index), 0, {}) >> 40U;
  return std::ldexp(static_cast<double>(drawn) - std::ldexp(1.0, 23), -23);
}

inline torch::Tensor numbers(std::uint64_t seed, torch::IntArrayRef sizes) {
  auto tensor = torch::empty(sizes, torch::kFloat64);
  auto* const values = tensor.data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) values[i] = number_at(seed, i);
  return tensor;
}

/// What a shard's, or a micro-batch's, loss and gradients depend on.
struct Piece {
  std::uint64_t seed = 0;
  std::int64_t index = 0;
  bool overflows = false;        ///< once the loss scale is on the gradients
  bool changes_buffers = false;  ///< as running statistics would
};

struct ModelKind {
  torch::ScalarType type = torch::kFloat32;  ///< of the layer
  bool has_double = false;                   ///< a float64 parameter
  bool has_table = false;                    ///< a row-sparse parameter
  bool has_wide = true;                      ///< one that is longer than a block of 4096 elements
};

class GoldenModel : public torch::nn::Module {
 public:
  /// Parameters and buffers hold numbers that depend on the seed.
  GoldenModel(const ModelKind& kind, std::uint64_t seed) {
    const auto layer = std::make_shared<torch::nn::Module>();
    layer->register_parameter("weight", torch::empty({13, 5}, kind.type));
    layer->register_parameter("bias", torch::empty({65}, kind.type));
    register_module("layer", layer);
    register_module("tied", layer);
    if (kind.has_wide) register_parameter("wide", torch::empty({4100}));
    register_parameter("turned", torch::empty_strided({5, 7}, {1, 5}, torch::kFloat32));
    register_parameter("scalar", torch::empty({}));
    register_parameter("sometimes", torch::empty({63}));
    register_parameter("never", torch::empty({3}));
    if (kind.has_double) register_parameter("double", torch::empty({9}, torch::kFloat64));
    if (kind.has_table) register_parameter("table", torch::empty({40, 6}));
    mean_ = register_buffer("mean", torch::empty({3}));
    first_ = register_buffer("first", torch::empty({2}));
    count_ = register_buffer("count", torch::zeros({}, torch::kInt64));
    register_buffer("constant", torch::empty({2}));
    const torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) fill(item.key(), item.value(), seed);
    for (auto& item : named_buffers()) {
      if (item.value().is_floating_point()) fill(item.key(), item.value(), seed);
    }
  }

  /// Each once, under its first name.
  std::vector<std::pair<std::string, torch::Tensor>> own_parameters() const {
    std::vector<std::pair<std::string, torch::Tensor>> own;
    std::set<const void*> seen;
    for (const auto& item : named_parameters()) {
      if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
        own.emplace_back(item.key(), item.value());
      }
    }
    return own;
  }

  /// A loss of a value that no order of additions can change, and whose gradients are
  /// gradient_at(). Every other piece leaves "sometimes" untouched.
  torch::Tensor loss(const Piece& piece) {
    const auto value = static_cast<double>(1 + number_of(piece.seed, 0, 0, "loss") % 999) / 64;
    auto sum = torch::full({}, value, torch::kFloat32);
    for (const auto& [name, parameter] : own_parameters()) {
      if (name == "never" || (name == "sometimes" && piece.index % 2 == 0)) continue;
      const auto seed = number_of(piece.seed, 0, 0, name);
      const auto used = name == "table" ? rows_of(parameter, seed) : parameter;
      auto gradient = gradient_at(used, seed);
      if (piece.overflows && name == "layer.bias") {
        gradient[0] = parameter.scalar_type() == torch::kFloat16 ? 6e4 : 3e38;
      }
      sum = sum + ((used - used.detach()) * gradient).sum().to(torch::kFloat32);
    }
    if (piece.changes_buffers) change_buffers(piece.seed);
    return sum;
  }

 private:
  static void fill(const std::string& name, torch::Tensor& tensor, std::uint64_t seed) {
    tensor.copy_(numbers(number_of(seed, 0, 0, name), tensor.sizes()));
  }

  static torch::Tensor gradient_at(const torch::Tensor& used, std::uint64_t seed) {
    const auto factor = numbers(number_of(seed, 0, 0, "factor"), used.sizes());
    const auto target = numbers(number_of(seed, 0, 0, "target"), used.sizes());
    const auto now = used.detach().to(torch::kFloat64);
    return (factor * (now - target)).to(used.scalar_type());
  }

  /// Six look-ups, the last of them of the first one's row.
  static torch::Tensor rows_of(const torch::Tensor& table, std::uint64_t seed) {
    std::vector<std::int64_t> codes;
    for (std::uint64_t k = 0; k < 6; ++k) {
      codes.push_back(static_cast<std::int64_t>(number_of(seed, k % 5, 0, "row") % 40));
    }
    return torch::embedding(table, torch::tensor(codes), -1, false, /*sparse=*/true);
  }

  void change_buffers(std::uint64_t seed) {
    const torch::NoGradGuard no_grad;
    for (auto* buffer : {&mean_, &first_}) {
      const auto fresh = numbers(number_of(seed, 0, 0, "buffer"), buffer->sizes());
      buffer->copy_(*buffer * 0.5 + fresh.to(torch::kFloat32));
    }
    count_.add_(1);
  }

  torch::Tensor mean_, first_, count_;
};

}  // namespace tutti::test::golden
