#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/norm.h"
#include "torch/split/classifier.h"

namespace tutti {

using Counts = std::vector<std::int64_t>;

void Classifier::add(const std::shared_ptr<ClassifierCall>& call) {
  if (std::ranges::find(pending_, call) == pending_.end()) pending_.push_back(call);
}

bool Classifier::has_gradient_of_a_step_before() const {
  return std::ranges::any_of(pending_, &ClassifierCall::is_divided);
}

void Classifier::gather_gradients() {
  const torch::NoGradGuard no_grad;
  std::ranges::sort(pending_, {}, [](const auto& call) { return call->number; });
  const auto options = torch::TensorOptions(settings_.computed);
  const auto members = static_cast<std::size_t>(group_.size());
  Counts numbers{settings_.classes};  // of the calls, compared
  Counts rows(members);
  std::vector<torch::Tensor> own{torch::zeros({0, 2}, options)};
  for (const auto& call : pending_) {
    numbers.push_back(call->number);
    for (std::size_t m = 0; m < members; ++m) rows[m] += call->rows[m];
    own.push_back(torch::stack({call->log_sums, call->gradients}, 1));
  }
  const auto label = label_of(
      fmt::format("update by backwards of calls {}",
                  fmt::join(std::span(numbers).subspan(1), " ")));  // counted from the last update
  group_.barrier({.label = label, .layout = numbers});
  const auto all = gather_rows(torch::cat(own), rows, "gradients of losses");
  Counts next(members);
  std::exclusive_scan(rows.begin(), rows.end(), next.begin(), std::int64_t{0});
  gradients_.clear();
  leaves_ = step_ ? step_->shards : std::max<std::int64_t>(1, std::ssize(pending_));
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
      gradients_.push_back({.samples = &leaf,
                            .place = step_ ? call.shards[l] : static_cast<std::int64_t>(c),
                            .log_sums = numbers_of_leaf.select(1, 0).contiguous(),
                            .weighted_inputs = leaf.inputs * by_loss.unsqueeze(1)});
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
  const auto all = gather_rows(own, counts, "squares of gradients");
  return tree_sum({all.const_data_ptr<double>(), static_cast<std::size_t>(all.numel())});
}

void Classifier::update(ClassUpdate how) {
  const torch::NoGradGuard no_grad;
  if (!gradients_.empty()) {
    how.leaves = leaves_;
    how.number = ++updates_;
    how.gradient_scale *= scale_;
    for (auto& piece : pieces_) piece.update(gradients_, how);
  }
  forget();
}

void Classifier::forget() {
  gradients_.clear();
  pending_.clear();
  calls_ = 0;
  scale_ = 1;
  step_.reset();
}

void Classifier::divide(double divisor) {
  for (const auto& call : pending_) {
    if (!std::exchange(call->is_divided, true)) call->gradients.div_(divisor);
  }
}

}  // namespace tutti
