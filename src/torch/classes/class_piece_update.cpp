#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <utility>

#include "kernels/fold_update.h"
#include "kernels/norm.h"
#include "run/data/leaf_seed.h"
#include "torch/classes/class_piece.h"
#include "torch/classes/class_rows.h"
#include "torch/classes/class_sums.h"
#include "tutti/tensors.h"

namespace tutti {

torch::Tensor ClassPiece::gradient(const LeafGradient& leaf, const Chunk& chunk,
                                   std::span<const Target> targets) const {
  const auto share = settings_.options.label_smoothing /
                     static_cast<double>(std::max<std::int64_t>(leaf.samples->taking_part, 1));
  auto logits = torch::mm(leaf.inputs, chunk.inputs.t());
  std::vector<double> slopes;
  for (const auto& [sample, row] : targets) {
    const auto column = row - chunk.begin;
    const auto logit = target_logit(settings_.options.margin, element(logits, sample, column));
    set_element(logits, sample, column, logit.value);
    slopes.push_back(logit.slope);
  }
  logits.sub_(leaf.log_sums.unsqueeze(1)).exp_();
  if (share > 0) logits.sub_(share);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto [sample, row] = targets[i];
    const auto column = row - chunk.begin;
    set_element(
        logits, sample, column,
        (element(logits, sample, column) - (1 - settings_.options.label_smoothing)) * slopes[i]);
  }
  auto gradient = torch::mm(logits.t(), leaf.weighted_inputs);
  if (!settings_.options.margin) return gradient;
  const auto along = (gradient * chunk.inputs).sum(1, true);
  return gradient.sub_(chunk.inputs * along).div_(chunk.norms);
}

torch::Tensor ClassPiece::node_of(const Part& part, const Chunk& whole,
                                  std::span<const std::int32_t> rows) const {
  auto own = whole;
  torch::Tensor places;  // of the leaf's rows in the chunk; undefined: all
  if (!rows.empty()) {
    const auto from = std::ranges::lower_bound(part.rows, rows.front());
    const auto to = std::ranges::upper_bound(part.rows, rows.back());
    if (from == to) return {};
    own.begin = from - part.rows.begin();
    if (static_cast<std::size_t>(to - from) < rows.size()) {
      std::vector<std::int32_t> found;
      for (auto it = from; it != to; ++it) {
        const auto place = std::ranges::lower_bound(rows, *it) - rows.begin();
        found.push_back(static_cast<std::int32_t>(place));
      }
      places = places_of(found);
      own.inputs = rows_at(whole.inputs, places);
      if (settings_.options.margin) own.norms = rows_at(whole.norms, places);
    }
  }
  const auto end = own.begin + own.inputs.size(0);
  const auto first = std::ranges::lower_bound(part.targets, own.begin, {}, &Target::row);
  const auto last = std::ranges::lower_bound(part.targets, end, {}, &Target::row);
  auto node = gradient(*part.leaf, own, {first, last});
  if (!places.defined()) return node;
  // −0.0 stands for what the leaf has not: added to any number it does not change it.
  auto padded = torch::full(whole.weights.sizes(), -0.0, node.options());
  set_rows_at(padded, places, node);
  return padded;
}

void ClassPiece::for_each_sum(std::span<const LeafGradient> gradients, std::int64_t leaves,
                              const std::function<void(const Sum&)>& take) const {
  const bool all = settings_.options.sample_rate == 1;
  std::vector<Part> parts;
  std::vector<std::int32_t> rows;
  std::int64_t samples = 0;
  for (const auto& leaf : gradients) {
    auto own = rows_of(*leaf.samples);
    auto targets = targets_of(*leaf.samples, own);
    if (!all && own.empty()) {  // all classes took part in this leaf
      own.resize(static_cast<std::size_t>(count()));
      std::iota(own.begin(), own.end(), 0);
    }
    std::vector<std::int32_t> both;
    std::ranges::set_union(rows, own, std::back_inserter(both));
    rows = std::move(both);
    samples = std::max(samples, leaf.samples->features.size(0));
    parts.push_back({&leaf, std::move(own), std::move(targets)});
  }
  const auto indices = all ? torch::Tensor() : places_of(rows);
  const auto classes = all ? count() : static_cast<std::int64_t>(rows.size());
  const auto step = chunk_classes(samples);
  for (std::int64_t begin = 0; begin < classes; begin += step) {
    const auto size = std::min(step, classes - begin);
    const auto whole = chunk(indices, begin, size);
    const auto own_rows = all ? std::span<const std::int32_t>()
                              : std::span(rows).subspan(static_cast<std::size_t>(begin),
                                                        static_cast<std::size_t>(size));
    TreeCounter counter([](torch::Tensor& one, const torch::Tensor& other) { one.add_(other); });
    for (const auto& part : parts) {
      auto node = node_of(part, whole, own_rows);
      if (node.defined()) counter.add(part.leaf->place, std::move(node));
    }
    if (counter.nodes().empty()) continue;
    take({whole, indices, FoldProgram::of_blocks(counter.blocks(), leaves), counter.nodes()});
  }
}

double ClassPiece::squares(std::span<const LeafGradient> gradients, std::int64_t leaves) const {
  std::vector<double> blocks;
  for_each_sum(gradients, leaves, [&](const Sum& sum) {
    const auto type = dtype_of(sum.chunk.weights);
    const auto folded = torch::empty_like(sum.nodes.front());
    void* const to = folded.data_ptr();
    std::vector<const void*> sources;
    for (const auto& node : sum.nodes) sources.push_back(node.const_data_ptr());
    fold({.program = &sum.program,
          .source_type = type,
          .result_type = type,
          .sources = sources,
          .destinations = {&to, 1},
          .count = folded.numel()});
    std::vector<double> own(
        static_cast<std::size_t>((folded.numel() + kNormBlock - 1) / kNormBlock));
    squares_of_blocks(to, type, folded.numel(), own);
    blocks.push_back(tree_sum(own));
  });
  return tree_sum(blocks);
}

void ClassPiece::update(std::span<const LeafGradient> gradients, const ClassUpdate& how) {
  const auto rule = settings_.rule.at({.step = how.number,
                                       .rate_factor = how.rate_factor,
                                       .row_sparse = settings_.options.sample_rate < 1});
  for_each_sum(gradients, how.leaves, [&](const Sum& sum) { apply(sum, how, rule); });
}

void ClassPiece::apply(const Sum& sum, const ClassUpdate& how, const PreparedUpdate& rule) {
  const auto& chunk = sum.chunk;
  const auto& rows = sum.rows;
  const auto size = chunk.weights.size(0);
  const bool in_place = !rows.defined() && settings_.options.dtype == settings_.computed;
  const auto places = rows.defined() ? rows.narrow(0, chunk.begin, size) : torch::Tensor();
  std::vector<torch::Tensor> states;
  for (const auto& state : states_) {
    states.push_back(places.defined() ? rows_at(state, places)
                                      : state.narrow(0, chunk.begin, size));
  }
  const auto type = dtype_of(chunk.weights);
  const auto row_bytes = static_cast<std::size_t>(settings_.features) * size_of(type);
  at::parallel_for(0, size, 256, [&](std::int64_t begin, std::int64_t end) {
    const auto skip = [&](const torch::Tensor& tensor) -> void* {
      return static_cast<std::byte*>(tensor.data_ptr()) +
             static_cast<std::size_t>(begin) * row_bytes;
    };
    std::vector<const void*> sources;
    for (const auto& node : sum.nodes) sources.push_back(skip(node));
    FoldUpdate work{.fold = {.program = &sum.program,
                             .source_type = type,
                             .result_type = type,
                             .divisor = how.divisor,
                             .sources = sources,
                             .count = (end - begin) * settings_.features},
                    .target = {.dtype = type,
                               .parameter = skip(chunk.weights),
                               .count = (end - begin) * settings_.features,
                               .gradient_scale = how.gradient_scale,
                               .clip_value = how.clip_value},
                    .update = rule};
    for (std::size_t s = 0; s < states.size(); ++s) work.target.states[s] = skip(states[s]);
    fold_update(work);
  });
  if (places.defined()) {
    for (std::size_t s = 0; s < states.size(); ++s) set_rows_at(states_[s], places, states[s]);
  }
  if (!in_place) store(chunk.weights, rows, chunk.begin, how.number);
}

void ClassPiece::store(const torch::Tensor& updated, const torch::Tensor& rows, std::int64_t begin,
                       std::int64_t number) {
  const auto size = updated.size(0);
  const auto places = rows.defined() ? rows.narrow(0, begin, size)
                                     : torch::arange(begin, begin + size, torch::kInt32);
  if (settings_.options.dtype == settings_.computed) return set_rows_at(weights_, places, updated);
  round_rows_at(weights_, places, updated, first_, leaf_seed(settings_.options.seed, number, -1));
}

}  // namespace tutti
