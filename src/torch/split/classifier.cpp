#include "torch/split/classifier.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "job/job_state.h"
#include "kernels/hash.h"
#include "memory/memory_need.h"
#include "run/leaf_seed.h"
#include "torch/model/threads.h"
#include "torch/split/class_sums.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Before each member's part.
Counts offsets_of(const Counts& counts) {
  Counts offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), std::int64_t{0});
  return offsets;
}

/// OutOfMemory on all members where one refuses.
void require_memory(const Group& group, const ClassifierSettings& settings) {
  const int members = group.size();
  std::uint64_t largest = 0;
  for (int member = 0; member < members; ++member) {
    largest = std::max(largest, settings.bytes_of(member, members));
  }
  const auto what = fmt::format("classifier \"{}\" of {} classes and {} features",
                                settings.options.name, settings.classes, settings.features);
  const auto refusal =
      refuse_memory(group.state()->job().system(), {.bytes_per_worker = largest,
                                                    .workers = group.state()->team().size(),
                                                    .what = what,
                                                    .is_private = true});
  const auto all = gather_bytes(group, std::as_bytes(std::span(refusal)), {.label = "memory"});
  if (!refusal.empty()) throw OutOfMemory(refusal);
  for (int member = 0; member < members; ++member) {
    const auto& text = all[static_cast<std::size_t>(member)];
    if (text.empty()) continue;
    throw OutOfMemory(
        fmt::format("rank {}: {}", group.job_rank(member),
                    std::string_view(reinterpret_cast<const char*>(text.data()), text.size())));
  }
}

}  // namespace

Classifier::Classifier(const Group& group, ClassifierSettings settings)
    : group_(group), settings_(std::move(settings)) {
  const auto label = fmt::format("\"{}\" {} features {} classes", settings_.options.name,
                                 settings_.features, settings_.classes);
  const std::int64_t numbers[] = {settings_.features, settings_.classes, settings_.options.pieces,
                                  static_cast<std::int64_t>(digest(settings_.text()) >> 1)};
  group_.barrier({.label = label, .layout = numbers});
  require_memory(group_, settings_);
  pin_threads(*group_.state());
  const auto [first, last] = settings_.pieces_of(group_.rank(), group_.size());
  first_piece_ = first;
  const ClassPiece::Layer layer{.features = settings_.features,
                                .stored = settings_.options.dtype,
                                .computed = settings_.computed,
                                .margin = settings_.options.margin,
                                .smoothing = settings_.options.label_smoothing,
                                .rate = settings_.options.sample_rate,
                                .rule = &settings_.rule,
                                .seed = settings_.options.seed};
  for (auto piece = first; piece < last; ++piece) {
    const auto [begin, end] = settings_.classes_of(piece);
    pieces_.emplace_back(layer, piece, begin, end - begin);
  }
}

/// A member with a problem says so in place of its number of rows, so that none waits for it.
Counts Classifier::agree_on_rows(std::int64_t own, const std::string& problem) const {
  Counts rows(static_cast<std::size_t>(group_.size()));
  if (!problem.empty()) own = -1;
  group_.all_gather({&own, 1, DType::int64}, {rows.data(), group_.size(), DType::int64},
                    {.label = "samples"});
  if (!problem.empty()) {
    throw InvalidArgument(fmt::format("classifier \"{}\": {}", settings_.options.name, problem));
  }
  for (int member = 0; member < group_.size(); ++member) {
    if (rows[static_cast<std::size_t>(member)] >= 0) continue;
    const int rank = group_.job_rank(member);
    throw PeerFailed(rank, 0,
                     fmt::format("classifier \"{}\": rank {} was given features or labels that it "
                                 "cannot take, as its own error says",
                                 settings_.options.name, rank));
  }
  return rows;
}

torch::Tensor Classifier::gather_rows(const torch::Tensor& own, const Counts& rows,
                                      const char* what) const {
  auto sizes = own.sizes().vec();
  sizes[0] = sum_of(rows);
  auto all = torch::empty(sizes, own.options());
  Counts counts = rows;
  for (auto& count : counts) count *= own.dim() > 1 ? own.size(1) : 1;
  group_.all_gather_variable(view_of(own), view_of(all), counts, {.label = what});
  return all;
}

LeafSamples Classifier::leaf_of(torch::Tensor features, Counts labels, std::uint64_t key,
                                bool samples_classes) const {
  LeafSamples leaf{.features = std::move(features),
                   .labels = std::move(labels),
                   .key = key,
                   .taking_part = 0,
                   .samples_classes = samples_classes,
                   .inputs = {}};
  leaf.taking_part = settings_.taking_part(leaf.labels, samples_classes);
  leaf.inputs = inputs_of(leaf.features, settings_.options.margin);
  return leaf;
}

namespace {

/// What forward() cannot take; "": nothing.
std::string problem_of(const torch::Tensor& features, const torch::Tensor& labels,
                       const ClassifierSettings& settings) {
  if (!features.defined() || !features.device().is_cpu() || features.dim() != 2 ||
      features.size(1) != settings.features || features.scalar_type() != settings.computed) {
    return fmt::format(
        "features must be [samples, {}] of {} on the CPU, not {}", settings.features,
        c10::toString(settings.computed),
        !features.defined()
            ? "undefined"
            : fmt::format("[{}] of {} on {}", fmt::join(features.sizes(), ", "),
                          c10::toString(features.scalar_type()), features.device().str()));
  }
  if (!labels.defined() || !labels.device().is_cpu() || labels.dim() != 1 ||
      labels.scalar_type() != torch::kInt64 || labels.size(0) != features.size(0)) {
    return fmt::format("labels must be [{}] of Long on the CPU, one for each sample",
                       features.size(0));
  }
  const auto outside = labels.ne(settings.options.ignore_index)
                           .logical_and(labels.lt(0).logical_or(labels.ge(settings.classes)));
  if (!outside.any().item<bool>()) return {};
  const auto at = outside.nonzero()[0][0].item<std::int64_t>();
  return fmt::format("label {} of sample {} is none of the {} classes, nor ignore_index {}",
                     labels[at].item<std::int64_t>(), at, settings.classes,
                     settings.options.ignore_index);
}

Counts numbers_of(const torch::Tensor& labels) {
  const auto* const data = labels.const_data_ptr<std::int64_t>();
  return {data, data + labels.numel()};
}

}  // namespace

Classifier::Losses Classifier::forward(const torch::Tensor& features, const torch::Tensor& labels,
                                       bool is_training) {
  const torch::NoGradGuard no_grad;
  const auto problem = problem_of(features, labels, settings_);
  Losses result;
  torch::Tensor own;
  torch::Tensor own_labels;
  if (problem.empty()) {
    result.kept = labels.ne(settings_.options.ignore_index).nonzero().flatten();
    own = features.detach().index_select(0, result.kept);
    own_labels = labels.index_select(0, result.kept);
  }
  auto call = std::make_shared<ClassifierCall>();
  call->rows = agree_on_rows(problem.empty() ? own.size(0) : 0, problem);
  call->number = calls_;
  const auto samples = features.size(0);
  const auto options = torch::TensorOptions(settings_.computed);
  result.losses = torch::zeros({samples}, options);
  result.gradients = torch::zeros({samples, settings_.features}, options);
  result.correct = torch::zeros({samples}, torch::kBool);
  result.call = call;
  if (is_training) ++calls_;
  if (sum_of(call->rows) == 0) return result;

  const bool samples_classes = is_training && settings_.options.sample_rate < 1;
  call->leaves.push_back(leaf_of(gather_rows(own, call->rows, "features"),
                                 numbers_of(gather_rows(own_labels, call->rows, "labels")),
                                 leaf_seed(settings_.options.seed, updates_, call->number + 1),
                                 samples_classes));
  const auto& leaf = call->leaves.front();
  SumsCounter counter(first_piece_);
  std::vector<PieceTargets> targets(pieces_.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p) counter.add(pieces_[p].sums(leaf, targets[p]));
  const auto sums = exchange_sums(*call, counter.nodes());
  const auto found = exchange_targets(*call, targets);
  call->gradients = torch::zeros({own.size(0)}, options);
  if (own.size(0) == 0) {
    call->log_sums = torch::zeros({0}, options);
    return result;
  }

  const auto in = settings_.features;
  const auto mine = sums.narrow(0, 0, own.size(0));
  const auto largest = ClassSums::largest(mine);
  call->log_sums = ClassSums::total(mine).log().add_(largest);
  const double smoothing = settings_.options.label_smoothing;
  const double share = smoothing / static_cast<double>(leaf.taking_part);
  const auto weights = found.narrow(1, 0, in);
  const auto logit = found.select(1, in);
  const auto slope = found.narrow(1, in + 1, 1);
  auto losses = call->log_sums - logit * (1 - smoothing);
  auto gradients = ClassSums::weighted(mine) / ClassSums::total(mine).unsqueeze(1);
  if (smoothing > 0) {
    losses.sub_(ClassSums::logits(mine) * share);
    const auto all = sums.narrow(0, own.size(0), 1).narrow(1, 0, in);
    gradients.sub_((all + weights * (slope - 1)).mul_(share));
  }
  gradients.sub_(weights * slope * (1 - smoothing));
  if (const auto& margin = settings_.options.margin) {
    const auto lengths = lengths_of(own);
    const auto directions = own / lengths;
    gradients.sub_(directions * (gradients * directions).sum(1, true))
        .mul_(margin->scale)
        .div_(lengths);
  }
  result.losses.index_copy_(0, result.kept, losses);
  result.gradients.index_copy_(0, result.kept, gradients);
  result.correct.index_copy_(0, result.kept, found.select(1, in + 2).ge(largest));
  return result;
}

torch::Tensor Classifier::exchange_sums(const ClassifierCall& call,
                                        const std::vector<torch::Tensor>& nodes) const {
  const auto rank = static_cast<std::size_t>(group_.rank());
  const auto columns = ClassSums::columns(settings_.features);
  const auto offsets = offsets_of(call.rows);
  const auto all = sum_of(call.rows);
  // A sample's sums, and behind those of a member's samples the sums of weights.
  const auto rows_for = [&](std::size_t member) {
    return call.rows[member] == 0 ? 0 : call.rows[member] + 1;
  };
  std::vector<Block> blocks;
  Counts given;
  Counts taken;
  std::vector<torch::Tensor> parts;
  for (std::size_t member = 0; member < call.rows.size(); ++member) {
    const auto [first, last] = settings_.pieces_of(static_cast<int>(member), group_.size());
    const auto theirs = blocks_of_range(first, last);
    blocks.insert(blocks.end(), theirs.begin(), theirs.end());
    given.push_back(static_cast<std::int64_t>(nodes.size()) * rows_for(member) * columns);
    taken.push_back(static_cast<std::int64_t>(theirs.size()) * rows_for(rank) * columns);
    if (rows_for(member) == 0) continue;
    for (const auto& node : nodes) {
      parts.push_back(node.narrow(0, offsets[member], call.rows[member]));
      parts.push_back(node.narrow(0, all, 1));
    }
  }
  const auto options = torch::TensorOptions(settings_.computed);
  const auto in = parts.empty() ? torch::empty({0, columns}, options) : torch::cat(parts);
  const auto count = static_cast<std::int64_t>(blocks.size());
  auto out = torch::empty({count, rows_for(rank), columns}, options);
  group_.all_to_all_variable(view_of(in), given, view_of(out), taken, {.label = "sums"});
  if (rows_for(rank) == 0) return {};
  std::vector<torch::Tensor> mine;
  for (std::int64_t node = 0; node < count; ++node) mine.push_back(out.select(0, node));
  return join_all(blocks, std::move(mine), settings_.options.pieces);
}

torch::Tensor Classifier::exchange_targets(const ClassifierCall& call,
                                           const std::vector<PieceTargets>& targets) const {
  const auto& leaf = call.leaves.front();
  const auto rank = static_cast<std::size_t>(group_.rank());
  const auto offsets = offsets_of(call.rows);
  const auto columns = settings_.features + 3;
  Counts given(call.rows.size());
  Counts taken(call.rows.size());
  // Of the own pieces' targets, by the member that has the sample, then by piece.
  std::vector<torch::Tensor> parts;
  for (std::size_t member = 0; member < call.rows.size(); ++member) {
    for (const auto& [samples, rows] : targets) {
      const auto first = std::ranges::lower_bound(samples, offsets[member]);
      const auto last = std::ranges::lower_bound(samples, offsets[member] + call.rows[member]);
      if (first == last) continue;
      parts.push_back(rows.narrow(0, first - samples.begin(), last - first));
      given[member] += (last - first) * columns;
    }
  }
  // This member's samples, by the piece that has their class.
  Counts order(static_cast<std::size_t>(call.rows[rank]));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto piece_of = [&](std::int64_t sample) {
    return settings_.piece_of(leaf.labels[static_cast<std::size_t>(offsets[rank] + sample)]);
  };
  std::ranges::stable_sort(order, {}, piece_of);
  for (std::size_t member = 0; member < call.rows.size(); ++member) {
    const auto [first, last] = settings_.pieces_of(static_cast<int>(member), group_.size());
    const auto from = std::ranges::lower_bound(order, first, {}, piece_of);
    const auto to = std::ranges::lower_bound(order, last, {}, piece_of);
    taken[member] = (to - from) * columns;
  }
  const auto options = torch::TensorOptions(settings_.computed);
  const auto in = parts.empty() ? torch::empty({0, columns}, options) : torch::cat(parts);
  auto came = torch::empty({call.rows[rank], columns}, options);
  group_.all_to_all_variable(view_of(in), given, view_of(came), taken, {.label = "own classes"});
  auto found = torch::empty_like(came);
  found.index_copy_(0, torch::tensor(order, torch::kInt64), came);
  return found;
}

void Classifier::add(const std::shared_ptr<ClassifierCall>& call) {
  if (std::ranges::find(pending_, call) == pending_.end()) pending_.push_back(call);
}

void Classifier::step(double rate_factor) {
  const torch::NoGradGuard no_grad;
  std::ranges::sort(pending_, {}, [](const auto& call) { return call->number; });
  const auto options = torch::TensorOptions(settings_.computed);
  Counts numbers;
  Counts rows(static_cast<std::size_t>(group_.size()));
  std::vector<torch::Tensor> own{torch::zeros({0, 2}, options)};
  for (const auto& call : pending_) {
    numbers.push_back(call->number);
    for (std::size_t m = 0; m < rows.size(); ++m) rows[m] += call->rows[m];
    if (call->log_sums.defined()) own.push_back(torch::stack({call->log_sums, call->gradients}, 1));
  }
  numbers.push_back(-1);
  group_.barrier({.label = "update of the classifier", .layout = numbers});
  const auto all = gather_rows(torch::cat(own), rows, "gradients of losses");
  std::vector<LeafGradient> gradients;
  auto next = offsets_of(rows);
  for (const auto& call : pending_) {
    std::vector<torch::Tensor> parts;
    for (std::size_t m = 0; m < rows.size(); ++m) {
      parts.push_back(all.narrow(0, next[m], call->rows[m]));
      next[m] += call->rows[m];
    }
    if (call->leaves.empty()) continue;
    const auto numbers_of_leaf = torch::cat(parts);
    const auto by_loss = numbers_of_leaf.select(1, 1);
    if (!by_loss.any().item<bool>()) continue;
    const auto& leaf = call->leaves.front();
    const auto place = static_cast<std::int64_t>(&call - pending_.data());
    gradients.push_back({.samples = &leaf,
                         .leaf = {place, 1},
                         .log_sums = numbers_of_leaf.select(1, 0).contiguous(),
                         .weighted_inputs = leaf.inputs * by_loss.unsqueeze(1)});
  }
  if (!gradients.empty()) {
    ++updates_;
    for (auto& piece : pieces_) {
      piece.update(gradients, static_cast<std::int64_t>(pending_.size()), divisor_, rate_factor,
                   updates_);
    }
  }
  forget();
}

void Classifier::forget() {
  pending_.clear();
  calls_ = 0;
}

torch::Tensor Classifier::predict(const torch::Tensor& features) {
  const torch::NoGradGuard no_grad;
  const auto labels = features.defined() && features.dim() == 2
                          ? torch::zeros({features.size(0)}, torch::kInt64)
                          : torch::Tensor();
  const auto problem = problem_of(features, labels, settings_);
  const auto own = problem.empty() ? features.detach().contiguous() : torch::Tensor();
  const auto rows = agree_on_rows(problem.empty() ? own.size(0) : 0, problem);
  const auto inputs = inputs_of(gather_rows(own, rows, "features"), settings_.options.margin);
  const auto options = torch::TensorOptions(settings_.computed);
  auto values = torch::full({inputs.size(0)}, -std::numeric_limits<double>::infinity(), options);
  auto classes = torch::full({inputs.size(0)}, settings_.classes, torch::kInt64);
  for (const auto& piece : pieces_) {
    const auto [value, index] = piece.largest(inputs);
    const auto better = value > values;
    values = torch::where(better, value, values);
    classes = torch::where(better, index, classes);
  }
  auto best = values.clone();
  all_reduce(group_, best, Reduction::max, {.label = "largest logits"});
  classes.masked_fill_(values != best, settings_.classes);
  all_reduce(group_, classes, Reduction::min, {.label = "classes"});
  const auto first = offsets_of(rows)[static_cast<std::size_t>(group_.rank())];
  return classes.narrow(0, first, own.size(0)).clone();
}

}  // namespace tutti
