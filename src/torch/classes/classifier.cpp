#include "torch/classes/classifier.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include <fmt/format.h>

#include "comm/group_state.h"
#include "run/data/leaf_seed.h"
#include "torch/classes/class_sums.h"
#include "torch/model/resolved.h"
#include "torch/model/threads.h"
#include "torch/split/layer_agreement.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

using Counts = std::vector<std::int64_t>;

std::string description_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return fmt::format("[{}] of {} on {}", fmt::join(tensor.sizes(), ", "),
                     c10::toString(tensor.scalar_type()), tensor.device().str());
}

/// What forward() cannot take; "": nothing.
std::string problem_of(const torch::Tensor& features, const torch::Tensor& labels,
                       const ClassifierSettings& settings) {
  if (!features.defined() || !features.device().is_cpu() || features.dim() != 2 ||
      features.size(1) != settings.features || features.scalar_type() != settings.computed) {
    return fmt::format("features must be [samples, {}] of {} on the CPU, not {}", settings.features,
                       c10::toString(settings.computed), description_of(features));
  }
  if (!labels.defined() || !labels.device().is_cpu() || labels.dim() != 1 ||
      labels.scalar_type() != torch::kInt64 || labels.size(0) != features.size(0)) {
    return fmt::format("labels must be [{}] of Long on the CPU, one for each sample, not {}",
                       features.size(0), description_of(labels));
  }
  const auto outside = labels.ne(settings.options.ignore_index)
                           .logical_and(labels.lt(0).logical_or(labels.ge(settings.classes)));
  if (!outside.any().item<bool>()) return {};
  const auto at = outside.nonzero()[0][0].item<std::int64_t>();
  return fmt::format("label {} of sample {} is none of the {} classes, nor ignore_index {}",
                     labels[at].item<std::int64_t>(), at, settings.classes,
                     settings.options.ignore_index);
}

}  // namespace

Classifier::Classifier(const Group& group, ClassifierSettings settings)
    : group_(group),
      settings_(std::move(settings)),
      rounds_(group_.state()->job(), settings_.label()),
      exchange_(group_, settings_, rounds_) {
  std::uint64_t largest = 0;
  for (int member = 0; member < group_.size(); ++member) {
    largest = std::max(largest, settings_.bytes_of(member, group_.size()));
  }
  require_room(group_,
               fmt::format("{} of {} classes and {} features", settings_.label(), settings_.classes,
                           settings_.features),
               largest);
  pin_threads(*group_.state());
  const auto [first, last] = settings_.pieces_of(group_.rank(), group_.size());
  first_piece_ = first;
  const auto weights = memory_of_pieces(settings_.options.dtype);
  std::vector<std::vector<torch::Tensor>> states;
  for (std::size_t s = 0; s < settings_.rule.states.size(); ++s) {
    states.push_back(memory_of_pieces(settings_.computed));
  }
  for (auto piece = first; piece < last; ++piece) {
    const auto at = static_cast<std::size_t>(piece - first);
    std::vector<torch::Tensor> own;
    for (const auto& state : states) own.push_back(state[at]);
    pieces_.emplace_back(settings_, piece, weights[at], std::move(own));
  }
}

/// One block for all own pieces, each of which begins at a multiple of 64 bytes: many blocks of
/// some MiB would leave a quarter of the heap unused.
std::vector<torch::Tensor> Classifier::memory_of_pieces(torch::ScalarType type) const {
  constexpr std::int64_t kApart = 64;  // elements
  const auto [first, last] = settings_.pieces_of(group_.rank(), group_.size());
  Counts begins;
  std::int64_t elements = 0;
  for (auto piece = first; piece < last; ++piece) {
    const auto [begin, end] = settings_.classes_of(piece);
    begins.push_back(elements);
    elements += ((end - begin) * settings_.features + kApart - 1) / kApart * kApart;
  }
  const auto block = torch::empty({elements}, type);
  std::vector<torch::Tensor> pieces;
  for (auto piece = first; piece < last; ++piece) {
    const auto [begin, end] = settings_.classes_of(piece);
    const auto at = begins[static_cast<std::size_t>(piece - first)];
    pieces.push_back(block.narrow(0, at, (end - begin) * settings_.features)
                         .view({end - begin, settings_.features}));
  }
  return pieces;
}

Classifier::Losses Classifier::forward(const torch::Tensor& features, const torch::Tensor& labels,
                                       bool is_training) {
  const bool learns = is_training && torch::GradMode::is_enabled();
  const torch::NoGradGuard no_grad;
  return rounds_.run(ClassifierUse::forward, [&] {
    return forward_with_all(features, labels, is_training && !rounds_.is_evaluation(), learns);
  });
}

Classifier::Losses Classifier::forward_with_all(const torch::Tensor& features,
                                                const torch::Tensor& labels, bool is_training,
                                                bool learns) {
  auto problem = problem_of(features, labels, settings_);
  if (learns && problem.empty() && has_gradient_of_a_step_before()) {
    problem =
        "it still has the gradient of a step that is over: step() applies it, and zero_grad() of "
        "the layer or the model forgets it; an optimizer's zero_grad() does not reach it";
  }
  Losses result;
  torch::Tensor own;
  torch::Tensor own_labels;
  if (problem.empty()) {
    result.kept = labels.ne(settings_.options.ignore_index).nonzero().flatten();
    own = features.detach().index_select(0, result.kept);
    own_labels = labels.index_select(0, result.kept);
  }
  auto call = std::make_shared<ClassifierCall>();
  call->number = calls_;
  call->updates = updates_;
  call->era = rounds_.era();
  exchange_.agree_on_rows(*call, problem.empty() ? own.size(0) : 0, problem,
                          is_training && settings_.options.sample_rate < 1);
  ++calls_;
  if (is_training) ++training_calls_;
  // In a step all members' pending calls are the same, whatever becomes of shards.
  if (rounds_.is_step()) add(call);
  result.call = call;
  const auto options = torch::TensorOptions(settings_.computed);
  result.losses = torch::zeros({features.size(0)}, options);
  result.gradients = torch::zeros({features.size(0), settings_.features}, options);
  result.correct = torch::zeros({features.size(0)}, torch::kBool);
  call->log_sums = torch::zeros({own.size(0)}, options);
  call->gradients = torch::zeros({own.size(0)}, options);
  exchange_.gather_leaves(*call, own, own_labels,
                          leaf_seed(settings_.options.seed, updates_, training_calls_));
  if (call->leaves.empty()) return result;

  std::vector<std::vector<torch::Tensor>> nodes;
  std::vector<std::vector<PieceTargets>> targets;
  for (const auto& leaf : call->leaves) {
    TreeCounter counter(join);
    auto& of_leaf = targets.emplace_back(pieces_.size());
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      counter.add(first_piece_ + static_cast<std::int64_t>(p), pieces_[p].sums(leaf, of_leaf[p]));
    }
    nodes.push_back(counter.nodes());
  }
  const auto sums = exchange_.exchange_sums(*call, nodes);
  const auto found = exchange_.exchange_targets(*call, targets);
  if (own.size(0) > 0) finish(result, own, sums, found);
  return result;
}

void Classifier::finish(Losses& result, const torch::Tensor& own, const torch::Tensor& sums,
                        const torch::Tensor& found) const {
  const auto in = settings_.features;
  const auto mine = sums.narrow(0, 0, own.size(0));
  const auto largest = ClassSums::largest(mine);
  auto& call = *result.call;
  call.log_sums = ClassSums::total(mine).log().add_(largest);
  const auto leaf = call.leaf_of[static_cast<std::size_t>(group_.rank())];
  const auto taking_part = call.leaves[static_cast<std::size_t>(leaf)].taking_part;
  const double smoothing = settings_.options.label_smoothing;
  const double share = smoothing / static_cast<double>(taking_part);
  const auto weights = found.narrow(1, 0, in);
  const auto logit = found.select(1, in);
  const auto slope = found.narrow(1, in + 1, 1);
  auto losses = call.log_sums - logit * (1 - smoothing);
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
}

void Classifier::join_call(ClassifierUse use) {
  const auto features = torch::zeros({0, settings_.features}, settings_.computed);
  rounds_.join([&] {
    if (use == ClassifierUse::predict) {
      predict(features);
    } else {
      forward(features, torch::zeros({0}, torch::kInt64), !rounds_.is_evaluation());
    }
  });
}

torch::Tensor Classifier::predict(const torch::Tensor& features) {
  const torch::NoGradGuard no_grad;
  return rounds_.run(ClassifierUse::predict, [&] { return predict_with_all(features); });
}

torch::Tensor Classifier::predict_with_all(const torch::Tensor& features) {
  const auto labels = features.defined() && features.dim() == 2
                          ? torch::zeros({features.size(0)}, torch::kInt64)
                          : torch::Tensor();
  const auto problem = problem_of(features, labels, settings_);
  const auto own = problem.empty() ? resolved(features.detach()).contiguous() : torch::Tensor();
  ClassifierCall call;
  exchange_.agree_on_rows(call, problem.empty() ? own.size(0) : 0, problem, false);
  const auto inputs =
      inputs_of(exchange_.gather_rows(own, call.rows, "features"), settings_.options.margin);
  const auto options = torch::TensorOptions(settings_.computed);
  auto values = torch::full({inputs.size(0)}, -std::numeric_limits<double>::infinity(), options);
  auto classes = torch::full({inputs.size(0)}, settings_.classes, torch::kInt64);
  // In an evaluation each member's samples are a batch, whose numbers must not depend on others.
  const Counts together{inputs.size(0)};
  std::int64_t begin = 0;
  for (const auto rows : rounds_.is_evaluation() ? call.rows : together) {
    auto value = values.narrow(0, begin, rows);
    auto of_class = classes.narrow(0, begin, rows);
    for (const auto& piece : pieces_) {
      const auto [found, index] = piece.largest(inputs.narrow(0, begin, rows));
      const auto better = is_larger(found, value);
      value.copy_(torch::where(better, found, value));
      of_class.copy_(torch::where(better, index, of_class));
    }
    begin += rows;
  }
  auto best = values.clone();
  all_reduce(group_, best, Reduction::max, {.label = exchange_.label_of("largest logits")});
  // NaN counts as the largest, as in torch.
  classes.masked_fill_(values.ne(best).logical_and(~values.isnan()), settings_.classes);
  all_reduce(group_, classes, Reduction::min, {.label = exchange_.label_of("classes")});
  const auto first =
      std::accumulate(call.rows.begin(), call.rows.begin() + group_.rank(), std::int64_t{0});
  return classes.narrow(0, first, own.size(0)).clone();
}

}  // namespace tutti
