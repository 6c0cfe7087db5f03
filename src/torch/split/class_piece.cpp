#include "torch/split/class_piece.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/fold_update.h"
#include "run/leaf_seed.h"
#include "torch/split/class_sampler.h"
#include "torch/split/class_sums.h"
#include "torch/split/target_logit.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

/// Logits of a chunk stay in the second-level cache.
constexpr std::int64_t kChunkElements = std::int64_t{1} << 18;

torch::Tensor index_tensor(std::span<const std::int32_t> rows) {
  return torch::tensor(at::ArrayRef<std::int32_t>(rows.data(), rows.size()), torch::kInt32);
}

double element(const torch::Tensor& matrix, std::int64_t row, std::int64_t column) {
  return matrix.scalar_type() == torch::kFloat64
             ? matrix.const_data_ptr<double>()[row * matrix.size(1) + column]
             : matrix.const_data_ptr<float>()[row * matrix.size(1) + column];
}

void set_element(const torch::Tensor& matrix, std::int64_t row, std::int64_t column, double value) {
  if (matrix.scalar_type() == torch::kFloat64) {
    matrix.data_ptr<double>()[row * matrix.size(1) + column] = value;
  } else {
    matrix.data_ptr<float>()[row * matrix.size(1) + column] = static_cast<float>(value);
  }
}

/// Up or down to bfloat16, the nearer one more often, by the numbers of a counter (Gupta et al.
/// 2015, arXiv 1502.02551, stochastic rounding). Values that are not finite stay so.
void round_at_random(const float* from, c10::BFloat16* to, std::int64_t count, std::uint64_t first,
                     std::uint64_t key) {
  for (std::int64_t i = 0; i < count; ++i) {
    auto mixed = static_cast<std::uint32_t>(first + static_cast<std::uint64_t>(i)) ^
                 static_cast<std::uint32_t>(key);
    mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6bU;
    mixed = (mixed ^ (mixed >> 13)) * 0xc2b2ae35U + static_cast<std::uint32_t>(key >> 32);
    mixed = (mixed ^ (mixed >> 16)) & 0xffffU;
    auto bits = c10::bit_cast<std::uint32_t>(from[i]);
    if ((bits & 0x7f800000U) != 0x7f800000U) bits += mixed;
    to[i] = c10::BFloat16(static_cast<std::uint16_t>(bits >> 16), c10::BFloat16::from_bits());
  }
}

}  // namespace

std::int64_t chunk_classes(std::int64_t samples) {
  const auto classes = kChunkElements / std::max<std::int64_t>(samples, 1);
  return std::clamp<std::int64_t>(classes / 64 * 64, 256, 8192);
}

torch::Tensor lengths_of(const torch::Tensor& rows) {
  return rows.norm(2, {1}, true).clamp_min_(1e-12);
}

torch::Tensor inputs_of(const torch::Tensor& features, const std::optional<Margin>& margin) {
  if (!margin) return features;
  return (features / lengths_of(features)).mul_(margin->scale);
}

ClassPiece::ClassPiece(const Layer& layer, std::int64_t index, std::int64_t first,
                       std::int64_t count)
    : layer_(layer), index_(index), first_(first) {
  const auto bound = 1 / std::sqrt(static_cast<double>(layer.features));
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(leaf_seed(layer.seed, 0, index));
  weights_ = torch::empty({count, layer.features}, layer.stored);
  for (std::int64_t begin = 0; begin < count; begin += chunk_classes(0)) {
    auto some = weights_.narrow(0, begin, std::min(chunk_classes(0), count - begin));
    some.copy_(torch::empty(some.sizes(), layer.computed).uniform_(-bound, bound, generator));
  }
  for (const auto& state : layer.rule->states) {
    states_.push_back(torch::full({count, layer.features}, state.initial, layer.computed));
  }
}

std::vector<std::int32_t> ClassPiece::rows_of(const LeafSamples& leaf) const {
  if (!leaf.samples_classes) return {};
  std::vector<std::int32_t> present;
  for (const auto label : leaf.labels) {
    if (label >= first_ && label < first_ + count()) {
      present.push_back(static_cast<std::int32_t>(label - first_));
    }
  }
  std::ranges::sort(present);
  const auto repeated = std::ranges::unique(present);
  present.erase(repeated.begin(), repeated.end());
  return sample_classes(count(), layer_.rate, present, leaf_seed(leaf.key, 0, index_));
}

std::vector<ClassPiece::Target> ClassPiece::targets_of(const LeafSamples& leaf,
                                                       std::span<const std::int32_t> rows) const {
  std::vector<Target> targets;
  for (std::size_t i = 0; i < leaf.labels.size(); ++i) {
    const auto row = leaf.labels[i] - first_;
    if (row < 0 || row >= count()) continue;
    const auto found =
        rows.empty()
            ? row
            : std::ranges::lower_bound(rows, static_cast<std::int32_t>(row)) - rows.begin();
    targets.push_back({static_cast<std::int64_t>(i), found});
  }
  std::ranges::stable_sort(targets, {}, &Target::row);
  return targets;
}

ClassPiece::Chunk ClassPiece::chunk(const torch::Tensor& rows, std::int64_t begin,
                                    std::int64_t count) const {
  Chunk chunk{.begin = begin, .weights = {}, .inputs = {}, .norms = {}};
  chunk.weights = rows.defined() ? weights_.index_select(0, rows.narrow(0, begin, count))
                                 : weights_.narrow(0, begin, count);
  chunk.weights = chunk.weights.to(layer_.computed);
  chunk.inputs = chunk.weights;
  if (layer_.margin) {
    chunk.norms = lengths_of(chunk.weights);
    chunk.inputs = chunk.weights / chunk.norms;
  }
  return chunk;
}

torch::Tensor ClassPiece::sums(const LeafSamples& leaf, PieceTargets& targets) const {
  const auto rows = rows_of(leaf);
  const auto indices = rows.empty() ? torch::Tensor() : index_tensor(rows);
  const auto all = targets_of(leaf, rows);
  const auto classes = rows.empty() ? count() : static_cast<std::int64_t>(rows.size());
  const auto samples = leaf.features.size(0);
  const auto in = layer_.features;
  const auto options = torch::TensorOptions(layer_.computed);
  auto sums = torch::zeros({samples + 1, ClassSums::columns(in)}, options);
  auto weighted = torch::zeros({samples, in}, options);
  auto largest = torch::full({samples}, -std::numeric_limits<double>::infinity(), options);
  auto total = torch::zeros({samples}, options);
  auto logit_sums = ClassSums::logits(sums).narrow(0, 0, samples);
  std::vector<std::pair<std::int64_t, torch::Tensor>> found;
  auto target = all.begin();
  const auto step = chunk_classes(samples);
  auto buffer = torch::empty({samples * std::min(step, classes)}, options);
  for (std::int64_t begin = 0; begin < classes; begin += step) {
    const auto size = std::min(step, classes - begin);
    const auto part = chunk(indices, begin, size);
    auto logits = buffer.narrow(0, 0, samples * size).view({samples, size});
    at::mm_out(logits, leaf.inputs, part.inputs.t());
    const auto first = target;
    std::vector<double> slopes;
    for (; target != all.end() && target->row < begin + size; ++target) {
      const auto column = target->row - begin;
      const double plain = element(logits, target->sample, column);
      const auto logit = target_logit(layer_.margin, plain);
      set_element(logits, target->sample, column, logit.value);
      slopes.push_back(logit.slope);
      auto row = torch::empty({1, in + 3}, options);
      row.narrow(1, 0, in).copy_(part.inputs.narrow(0, column, 1));
      set_element(row, 0, in, element(logits, target->sample, column));
      set_element(row, 0, in + 1, logit.slope);
      set_element(row, 0, in + 2, plain);
      found.emplace_back(target->sample, std::move(row));
    }
    if (layer_.smoothing > 0) {
      logit_sums.add_(logits.sum(1));
      sums.narrow(1, 0, in).select(0, samples).add_(part.inputs.sum(0));
    }
    const auto bound = torch::maximum(largest, logits.amax(1));
    logits.sub_(bound.unsqueeze(1)).exp_();
    largest.sub_(bound).exp_();
    total.mul_(largest).add_(logits.sum(1));
    if (layer_.margin) {
      for (auto it = first; it != target; ++it) {
        const auto column = it->row - begin;
        const auto slope = slopes[static_cast<std::size_t>(it - first)];
        set_element(logits, it->sample, column, element(logits, it->sample, column) * slope);
      }
    }
    weighted.mul_(largest.unsqueeze(1)).addmm_(logits, part.inputs);
    largest = bound;
  }
  ClassSums::weighted(sums).narrow(0, 0, samples).copy_(weighted);
  ClassSums::total(sums).narrow(0, 0, samples).copy_(total);
  ClassSums::largest(sums).narrow(0, 0, samples).copy_(largest);
  std::ranges::sort(found, {}, [](const auto& item) { return item.first; });
  targets.rows = torch::empty({static_cast<std::int64_t>(found.size()), in + 3}, options);
  for (std::size_t i = 0; i < found.size(); ++i) {
    targets.samples.push_back(found[i].first);
    targets.rows.narrow(0, static_cast<std::int64_t>(i), 1).copy_(found[i].second);
  }
  return sums;
}

torch::Tensor ClassPiece::gradient(const LeafGradient& leaf, const Chunk& chunk,
                                   std::span<const Target> targets) const {
  const auto share =
      layer_.smoothing / static_cast<double>(std::max<std::int64_t>(leaf.samples->taking_part, 1));
  auto logits = torch::mm(leaf.samples->inputs, chunk.inputs.t());
  std::vector<double> slopes;
  for (const auto& [sample, row] : targets) {
    const auto column = row - chunk.begin;
    const auto logit = target_logit(layer_.margin, element(logits, sample, column));
    set_element(logits, sample, column, logit.value);
    slopes.push_back(logit.slope);
  }
  logits.sub_(leaf.log_sums.unsqueeze(1)).exp_();
  if (share > 0) logits.sub_(share);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto [sample, row] = targets[i];
    const auto column = row - chunk.begin;
    set_element(logits, sample, column,
                (element(logits, sample, column) - (1 - layer_.smoothing)) * slopes[i]);
  }
  auto gradient = torch::mm(logits.t(), leaf.weighted_inputs);
  if (!layer_.margin) return gradient;
  const auto along = (gradient * chunk.inputs).sum(1, true);
  return gradient.sub_(chunk.inputs * along).div_(chunk.norms);
}

void ClassPiece::update(std::span<const LeafGradient> gradients, std::int64_t leaves,
                        double divisor, double rate_factor, std::int64_t number) {
  struct Part {
    const LeafGradient* leaf;
    std::vector<std::int32_t> rows;
    std::vector<Target> targets;
  };
  const auto rule =
      layer_.rule->at({.step = number, .rate_factor = rate_factor, .row_sparse = layer_.rate < 1});
  std::vector<Part> parts;
  std::vector<std::int32_t> rows;
  std::int64_t samples = 0;
  for (const auto& leaf : gradients) {
    auto own = rows_of(*leaf.samples);
    auto targets = targets_of(*leaf.samples, own);
    std::vector<std::int32_t> both;
    std::ranges::set_union(rows, own, std::back_inserter(both));
    rows = std::move(both);
    samples = std::max(samples, leaf.samples->features.size(0));
    parts.push_back({&leaf, std::move(own), std::move(targets)});
  }
  const bool all = rows.empty();
  const auto indices = all ? torch::Tensor() : index_tensor(rows);
  const auto classes = all ? count() : static_cast<std::int64_t>(rows.size());
  const auto step = chunk_classes(samples);
  for (std::int64_t begin = 0; begin < classes; begin += step) {
    const auto size = std::min(step, classes - begin);
    const auto whole = chunk(indices, begin, size);
    std::vector<Block> blocks;
    std::vector<torch::Tensor> nodes;
    for (const auto& part : parts) {
      auto own = whole;
      torch::Tensor places;  // of the leaf's rows in the chunk; undefined: all
      if (!all) {
        const auto from =
            std::ranges::lower_bound(part.rows, rows[static_cast<std::size_t>(begin)]);
        const auto to =
            std::ranges::upper_bound(part.rows, rows[static_cast<std::size_t>(begin + size - 1)]);
        if (from == to) continue;
        own.begin = from - part.rows.begin();
        if (to - from < size) {
          std::vector<std::int32_t> found;
          for (auto it = from; it != to; ++it) {
            found.push_back(static_cast<std::int32_t>(std::ranges::lower_bound(rows, *it) -
                                                      rows.begin() - begin));
          }
          places = index_tensor(found);
          own.inputs = whole.inputs.index_select(0, places);
          if (layer_.margin) own.norms = whole.norms.index_select(0, places);
        }
      }
      const auto first = std::ranges::lower_bound(part.targets, own.begin, {}, &Target::row);
      const auto last =
          std::ranges::lower_bound(part.targets, own.begin + own.inputs.size(0), {}, &Target::row);
      auto node = gradient(*part.leaf, own, {first, last});
      if (places.defined()) {
        // What a leaf has not is −0.0, which adds to any number without changing it.
        auto padded = torch::full({size, layer_.features}, -0.0, node.options());
        padded.index_copy_(0, places.to(torch::kInt64), node);
        node = std::move(padded);
      }
      blocks.push_back(part.leaf->leaf);
      nodes.push_back(std::move(node));
      while (blocks.size() > 1) {
        auto& left = blocks[blocks.size() - 2];
        if (left.size != blocks.back().size || left.begin + left.size != blocks.back().begin ||
            left.begin % (2 * left.size) != 0) {
          break;
        }
        nodes[nodes.size() - 2].add_(nodes.back());
        left.size *= 2;
        blocks.pop_back();
        nodes.pop_back();
      }
    }
    if (!nodes.empty()) apply(whole, indices, blocks, nodes, leaves, divisor, rule, number);
  }
}

void ClassPiece::apply(const Chunk& chunk, const torch::Tensor& rows, std::span<const Block> blocks,
                       std::span<const torch::Tensor> nodes, std::int64_t leaves, double divisor,
                       const PreparedUpdate& rule, std::int64_t number) {
  const auto program = FoldProgram::of_blocks(blocks, leaves);
  const auto size = chunk.weights.size(0);
  const bool in_place = !rows.defined() && layer_.stored == layer_.computed;
  const auto places = rows.defined() ? rows.narrow(0, chunk.begin, size) : torch::Tensor();
  std::vector<torch::Tensor> states;
  for (const auto& state : states_) {
    states.push_back(places.defined() ? state.index_select(0, places)
                                      : state.narrow(0, chunk.begin, size));
  }
  const auto type = dtype_of(chunk.weights);
  const auto row_bytes = static_cast<std::size_t>(layer_.features) * size_of(type);
  at::parallel_for(0, size, 256, [&](std::int64_t begin, std::int64_t end) {
    const auto skip = [&](const torch::Tensor& tensor) -> void* {
      return static_cast<std::byte*>(tensor.data_ptr()) +
             static_cast<std::size_t>(begin) * row_bytes;
    };
    std::vector<const void*> sources;
    for (const auto& node : nodes) sources.push_back(skip(node));
    FoldUpdate work{.fold = {.program = &program,
                             .source_type = type,
                             .result_type = type,
                             .divisor = divisor,
                             .sources = sources,
                             .count = (end - begin) * layer_.features},
                    .target = {.dtype = type,
                               .parameter = skip(chunk.weights),
                               .count = (end - begin) * layer_.features},
                    .update = rule};
    for (std::size_t s = 0; s < states.size(); ++s) work.target.states[s] = skip(states[s]);
    fold_update(work);
  });
  if (places.defined()) {
    const auto wide = places.to(torch::kInt64);
    for (std::size_t s = 0; s < states.size(); ++s) states_[s].index_copy_(0, wide, states[s]);
  }
  if (!in_place) store(chunk.weights, rows, chunk.begin, number);
}

void ClassPiece::store(const torch::Tensor& updated, const torch::Tensor& rows, std::int64_t begin,
                       std::int64_t number) {
  const auto size = updated.size(0);
  const auto places =
      rows.defined() ? rows.narrow(0, begin, size).to(torch::kInt64) : torch::Tensor();
  if (layer_.stored == layer_.computed) {
    weights_.index_copy_(0, places, updated);
    return;
  }
  const auto key = leaf_seed(layer_.seed, number, -1);
  for (std::int64_t i = 0; i < size; ++i) {
    const auto row = places.defined() ? places.const_data_ptr<std::int64_t>()[i] : begin + i;
    round_at_random(updated.const_data_ptr<float>() + i * layer_.features,
                    weights_.data_ptr<c10::BFloat16>() + row * layer_.features, layer_.features,
                    static_cast<std::uint64_t>((first_ + row) * layer_.features), key);
  }
}

std::pair<torch::Tensor, torch::Tensor> ClassPiece::largest(const torch::Tensor& inputs) const {
  auto values = torch::full({inputs.size(0)}, -std::numeric_limits<double>::infinity(),
                            torch::TensorOptions(layer_.computed));
  auto classes = torch::full({inputs.size(0)}, first_, torch::kInt64);
  const auto step = chunk_classes(inputs.size(0));
  for (std::int64_t begin = 0; begin < count(); begin += step) {
    const auto part = chunk({}, begin, std::min(step, count() - begin));
    const auto [value, index] = torch::mm(inputs, part.inputs.t()).max(1);
    const auto better = value > values;
    values = torch::where(better, value, values);
    classes = torch::where(better, index + (first_ + begin), classes);
  }
  return {values, classes};
}

}  // namespace tutti
