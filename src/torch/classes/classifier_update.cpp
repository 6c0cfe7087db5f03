#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/norm.h"
#include "torch/classes/classifier.h"
#include "tutti/error.h"

namespace tutti {

using Counts = std::vector<std::int64_t>;

void Classifier::add(const std::shared_ptr<ClassifierCall>& call) {
  if (std::ranges::find(pending_, call) == pending_.end()) pending_.push_back(call);
}

void Classifier::take_backward(const std::shared_ptr<ClassifierCall>& call) {
  const auto refuse = [&](const char* why) {
    throw InvalidArgument(fmt::format("{}: a backward {}", settings_.label(), why));
  };
  if (call->updates != updates_) {
    refuse("of a forward() that was before an update of the weights: run forward() again");
  }
  if (call->is_divided || call->era != rounds_.era()) {
    refuse("of a forward() that belongs to another step: run forward() again");
  }
  if (rounds_.is_step() && !rounds_.is_in_backward()) {
    refuse("in a shard of a Trainer: return shard.loss(), and leave the backward to it");
  }
  add(call);
}

bool Classifier::has_gradient_of_a_step_before() const {
  return std::ranges::any_of(pending_, &ClassifierCall::is_divided);
}

void Classifier::gather_gradients(double rate_factor) {
  const torch::NoGradGuard no_grad;
  std::ranges::sort(pending_, {}, [](const auto& call) { return call->number; });
  const auto options = torch::TensorOptions(settings_.computed);
  const auto members = static_cast<std::size_t>(group_.size());
  Counts numbers{exchange_.id()};  // of the layer and the calls, compared
  Counts rows(members);
  std::vector<torch::Tensor> own{torch::zeros({0, 2}, options)};
  for (const auto& call : pending_) {
    numbers.push_back(call->number);
    for (std::size_t m = 0; m < members; ++m) rows[m] += call->rows[m];
    own.push_back(torch::stack({call->log_sums, call->gradients}, 1));
  }
  const auto label = exchange_.label_of(
      fmt::format("update at rate {} by backwards of calls {}", rate_factor,
                  fmt::join(std::span(numbers).subspan(1), " ")));  // counted from the last update
  group_.barrier({.label = label, .layout = numbers});
  const auto all = exchange_.gather_rows(torch::cat(own), rows, "gradients of losses");
  Counts next(members);
  std::exclusive_scan(rows.begin(), rows.end(), next.begin(), std::int64_t{0});
  gradients_.clear();
  leaves_ = rounds_.shards().value_or(std::max<std::int64_t>(1, std::ssize(pending_)));
  for (std::size_t c = 0; c < pending_.size(); ++c) {
    const auto& call = *pending_[c];
    std::vector<std::vector<torch::Tensor>> parts(call.leaves.size());
    for (std::size_t m = 0; m < members; ++m) {
      if (call.rows[m] > 0) {
        parts[static_cast<std::size_t>(call.leaf_of[m])].push_back(
            all.narrow(0, next[m], call.rows[m]));
      }
      next[m] += call.rows[m];
    }
    for (std::size_t l = 0; l < parts.size(); ++l) {
      const auto numbers_of_leaf = torch::cat(parts[l]);
      const auto by_loss = numbers_of_leaf.select(1, 1);
      if (!by_loss.any().item<bool>()) continue;  // no backward came to it
      const auto& leaf = call.leaves[l];
      auto log_sums = numbers_of_leaf.select(1, 0).contiguous();
      auto inputs = leaf.inputs;
      // A sample whose loss counts nothing gives nothing, whatever it is: NaN, too.
      if (const auto nothing = by_loss.eq(0); nothing.any().item<bool>()) {
        log_sums = log_sums.masked_fill(nothing, 0);
        inputs = inputs.masked_fill(nothing.unsqueeze(1), 0);
      }
      auto weighted = inputs * by_loss.unsqueeze(1);
      gradients_.push_back(
          {.samples = &leaf,
           .place = rounds_.is_step() ? call.shards[l] : static_cast<std::int64_t>(c),
           .inputs = std::move(inputs),
           .log_sums = std::move(log_sums),
           .weighted_inputs = std::move(weighted)});
    }
  }
  std::ranges::sort(gradients_, {}, &LeafGradient::place);
}

std::optional<std::int64_t> Classifier::not_finite() const {
  const auto found = std::ranges::find_if(gradients_, [](const LeafGradient& leaf) {
    return !leaf.log_sums.isfinite().all().item<bool>() ||
           !leaf.weighted_inputs.isfinite().all().item<bool>();
  });
  if (found == gradients_.end()) return {};
  return found->place;
}

bool Classifier::may_overflow() const {
  double bound = 0;
  for (const auto& leaf : gradients_) {
    bound += leaf.weighted_inputs.abs().amax(1).sum(torch::kFloat64).item<double>();
  }
  const double most = settings_.computed == torch::kFloat64
                          ? std::numeric_limits<double>::max()
                          : static_cast<double>(std::numeric_limits<float>::max());
  // By a probability and the smoothing; with a margin also by a slope, and over a length.
  const double factor = settings_.options.margin ? 1e16 : 4;
  return bound > most / factor;
}

void Classifier::scale(double factor) {
  for (const auto& call : pending_) call->gradients.mul_(factor);
}

double Classifier::squares() const {
  const torch::NoGradGuard no_grad;
  auto own = torch::empty({std::ssize(pieces_)}, torch::kFloat64);
  auto* next = own.data_ptr<double>();
  for (const auto& piece : pieces_) *next++ = piece.squares(gradients_, leaves_);
  Counts counts;
  for (int member = 0; member < group_.size(); ++member) {
    const auto [first, last] = settings_.pieces_of(member, group_.size());
    counts.push_back(last - first);
  }
  const auto all = exchange_.gather_rows(own, counts, "squares of gradients");
  return tree_sum({all.const_data_ptr<double>(), static_cast<std::size_t>(all.numel())});
}

void Classifier::update(ClassUpdate how) {
  const torch::NoGradGuard no_grad;
  if (!gradients_.empty()) {
    set_updates(updates_ + 1);
    how.leaves = leaves_;
    how.number = updates_;
    for (auto& piece : pieces_) piece.update(gradients_, how);
  }
  forget();
}

void Classifier::set_updates(std::int64_t updates) {
  updates_ = updates;
  calls_ = 0;
  training_calls_ = 0;
}

void Classifier::forget() {
  // A graph that was kept may come to a call again.
  for (const auto& call : pending_) {
    call->gradients.zero_();
    call->is_divided = false;
  }
  gradients_.clear();
  pending_.clear();
  rounds_.end_step();
}

void Classifier::divide(double divisor) {
  for (const auto& call : pending_) {
    if (!std::exchange(call->is_divided, true)) call->gradients.div_(divisor);
  }
}

}  // namespace tutti
