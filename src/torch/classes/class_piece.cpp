#include "torch/classes/class_piece.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "run/data/leaf_seed.h"
#include "torch/classes/class_rows.h"
#include "torch/classes/class_sampler.h"
#include "torch/classes/class_sums.h"

namespace tutti {
namespace {

/// Logits of a chunk stay in the second-level cache.
constexpr std::int64_t kChunkElements = std::int64_t{1} << 18;

}  // namespace

TargetLogit target_logit(const std::optional<Margin>& margin, double plain) {
  if (!margin) return {plain, 1};
  constexpr double kLargestCosine = 1 - 1e-7;
  const double cosine = std::clamp(plain / margin->scale, -kLargestCosine, kLargestCosine);
  const double angle = std::acos(cosine);
  const double moved = margin->m1 * angle + margin->m2;
  return {margin->scale * (std::cos(moved) - margin->m3),
          margin->m1 * std::sin(moved) / std::sin(angle)};
}

std::int64_t chunk_classes(std::int64_t samples) {
  const auto classes = kChunkElements / std::max<std::int64_t>(samples, 1);
  return std::clamp<std::int64_t>(classes / 64 * 64, 256, 8192);
}

torch::Tensor lengths_of(const torch::Tensor& rows) {
  return (rows * rows).sum(1, true).sqrt_().clamp_min_(1e-12);
}

torch::Tensor inputs_of(const torch::Tensor& features, const std::optional<Margin>& margin) {
  if (!margin) return features;
  return (features / lengths_of(features)).mul_(margin->scale);
}

ClassPiece::ClassPiece(const ClassifierSettings& settings, std::int64_t index,
                       torch::Tensor weights, std::vector<torch::Tensor> states)
    : settings_(settings),
      index_(index),
      first_(settings.classes_of(index).first),
      weights_(std::move(weights)),
      states_(std::move(states)) {
  const auto bound = 1 / std::sqrt(static_cast<double>(settings.features));
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(leaf_seed(settings.options.seed, 0, index));
  for (std::int64_t begin = 0; begin < count(); begin += chunk_classes(0)) {
    auto some = weights_.narrow(0, begin, std::min(chunk_classes(0), count() - begin));
    some.copy_(torch::empty(some.sizes(), settings.computed).uniform_(-bound, bound, generator));
  }
  for (std::size_t s = 0; s < states_.size(); ++s) {
    states_[s].fill_(settings.rule.states[s].initial);
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
  return sample_classes(count(), settings_.options.sample_rate, present,
                        leaf_seed(leaf.key, 0, index_));
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
  chunk.weights = rows.defined() ? rows_at(weights_, rows.narrow(0, begin, count))
                                 : weights_.narrow(0, begin, count);
  chunk.weights = chunk.weights.to(settings_.computed);
  chunk.inputs = chunk.weights;
  if (settings_.options.margin) {
    chunk.norms = lengths_of(chunk.weights);
    chunk.inputs = chunk.weights / chunk.norms;
  }
  return chunk;
}

torch::Tensor ClassPiece::sums(const LeafSamples& leaf, PieceTargets& targets) const {
  const auto rows = rows_of(leaf);
  const auto indices = rows.empty() ? torch::Tensor() : places_of(rows);
  const auto all = targets_of(leaf, rows);
  const auto classes = rows.empty() ? count() : static_cast<std::int64_t>(rows.size());
  const auto samples = leaf.features.size(0);
  const auto in = settings_.features;
  const auto options = torch::TensorOptions(settings_.computed);
  auto sums = torch::zeros({samples + 1, ClassSums::columns(in)}, options);
  auto weighted = torch::zeros({samples, in}, options);
  auto largest = torch::full({samples}, -std::numeric_limits<double>::infinity(), options);
  auto total = torch::zeros({samples}, options);
  auto logit_sums = ClassSums::logits(sums).narrow(0, 0, samples);
  for (const auto& one : all) targets.samples.push_back(one.sample);
  std::ranges::sort(targets.samples);
  targets.rows = torch::empty({std::ssize(all), ClassSums::columns(in)}, options);
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
      const auto logit = target_logit(settings_.options.margin, plain);
      set_element(logits, target->sample, column, logit.value);
      slopes.push_back(logit.slope);
      const auto row =
          std::ranges::lower_bound(targets.samples, target->sample) - targets.samples.begin();
      targets.rows[row].narrow(0, 0, in).copy_(part.inputs[column]);
      set_element(targets.rows, row, in, element(logits, target->sample, column));
      set_element(targets.rows, row, in + 1, logit.slope);
      set_element(targets.rows, row, in + 2, plain);
    }
    if (settings_.options.label_smoothing > 0) {
      logit_sums.add_(logits.sum(1));
      sums.narrow(1, 0, in).select(0, samples).add_(part.inputs.sum(0));
    }
    const auto bound = torch::maximum(largest, logits.amax(1));
    logits.sub_(bound.unsqueeze(1)).exp_();
    largest.sub_(bound).exp_();
    total.mul_(largest).add_(logits.sum(1));
    if (settings_.options.margin) {
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
  return sums;
}

torch::Tensor is_larger(const torch::Tensor& one, const torch::Tensor& other) {
  return one.gt(other).logical_or(one.isnan().logical_and(~other.isnan()));
}

std::pair<torch::Tensor, torch::Tensor> ClassPiece::largest(const torch::Tensor& inputs) const {
  auto values = torch::full({inputs.size(0)}, -std::numeric_limits<double>::infinity(),
                            torch::TensorOptions(settings_.computed));
  auto classes = torch::full({inputs.size(0)}, first_, torch::kInt64);
  const auto step = chunk_classes(inputs.size(0));
  for (std::int64_t begin = 0; begin < count(); begin += step) {
    const auto part = chunk({}, begin, std::min(step, count() - begin));
    const auto [value, index] = torch::mm(inputs, part.inputs.t()).max(1);
    const auto better = is_larger(value, values);
    values = torch::where(better, value, values);
    classes = torch::where(better, index + (first_ + begin), classes);
  }
  return {values, classes};
}

}  // namespace tutti
