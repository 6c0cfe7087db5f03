#include "torch/classes/class_sums.h"

#include <utility>

namespace tutti {

void join(torch::Tensor& one, const torch::Tensor& other) {
  const auto largest = torch::maximum(ClassSums::largest(one), ClassSums::largest(other));
  const auto ours = (ClassSums::largest(one) - largest).exp_().unsqueeze(1);
  const auto theirs = (ClassSums::largest(other) - largest).exp_().unsqueeze(1);
  // Weighted sums and totals are neighbours.
  const auto columns = one.size(1) - 2;
  auto sums = one.narrow(1, 0, columns);
  sums.mul_(ours).add_(other.narrow(1, 0, columns) * theirs);
  ClassSums::largest(one).copy_(largest);
  ClassSums::logits(one).add_(ClassSums::logits(other));
}

void TreeCounter::add(std::int64_t leaf, torch::Tensor value) {
  blocks_.push_back({leaf, 1});
  nodes_.push_back(std::move(value));
  while (blocks_.size() > 1) {
    auto& left = blocks_[blocks_.size() - 2];
    const auto& right = blocks_.back();
    if (left.size != right.size || left.begin + left.size != right.begin ||
        left.begin % (2 * left.size) != 0) {
      break;
    }
    join_(nodes_[nodes_.size() - 2], nodes_.back());
    left.size *= 2;
    blocks_.pop_back();
    nodes_.pop_back();
  }
}

torch::Tensor join_all(std::span<const Block> blocks, std::vector<torch::Tensor> nodes,
                       std::int64_t pieces) {
  const auto program = FoldProgram::of_blocks(blocks, pieces);
  std::vector<torch::Tensor> stack;
  auto next = nodes.begin();
  for (const auto step : program.steps()) {
    if (step == FoldProgram::Step::push) {
      stack.push_back(std::move(*next++));
    } else {
      join(stack[stack.size() - 2], stack.back());
      stack.pop_back();
    }
  }
  return std::move(stack.back());
}

}  // namespace tutti
