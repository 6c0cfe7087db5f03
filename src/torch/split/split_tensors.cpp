#include "tutti/split_tensors.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "comm/group_state.h"
#include "torch/model/resolved.h"
#include "torch/split/split_layers.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

torch::Tensor values_of(const torch::Tensor& gradient) {
  return gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
}

double squares_of(const torch::Tensor& gradient) {
  return values_of(gradient.detach()).to(torch::kFloat64).square().sum().item<double>();
}

/// Why these are not the rows of that whole; empty: they are.
std::string refusal(const SplitTensor& tensor, const torch::Tensor& whole) {
  auto sizes = tensor.rows.sizes().vec();
  sizes.at(0) = tensor.of_rows;
  if (whole.defined() && whole.sizes() == sizes &&
      whole.scalar_type() == tensor.rows.scalar_type()) {
    return "";
  }
  return fmt::format("\"{}\" is {} {} as a whole, not {}", tensor.name,
                     c10::toString(tensor.rows.scalar_type()), c10::str(torch::IntArrayRef(sizes)),
                     whole.defined()
                         ? c10::toString(whole.scalar_type()) + (' ' + c10::str(whole.sizes()))
                         : std::string("undefined"));
}

/// In elements, and by rank.
std::vector<std::int64_t> counts_of(const Group& group, const SplitTensor& tensor) {
  const std::int64_t mine[] = {tensor.first, tensor.rows.numel()};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(group.size()));
  const std::vector<std::int64_t> layout = {tensor.of_rows};
  group.all_gather({mine, 2, DType::int64}, {all.data(), 2 * group.size(), DType::int64},
                   {.label = tensor.name, .layout = layout});
  std::vector<std::int64_t> counts;
  std::int64_t sum = 0;
  for (std::size_t r = 1; r < all.size(); r += 2) {
    counts.push_back(all[r]);
    sum += all[r];
  }
  auto of_a_row = tensor.rows.sizes().vec();
  of_a_row.at(0) = 1;
  const auto whole = tensor.of_rows * c10::multiply_integers(of_a_row);
  if (sum != whole) {
    throw InvalidArgument(fmt::format(
        "\"{}\": the members' tensors have {} elements, the whole {}: give each one's rows as one "
        "tensor; of a ParallelCrossEntropy, which has a tensor for each piece, save() has the "
        "whole",
        tensor.name, sum, whole));
  }
  return counts;
}

}  // namespace

double clip_grad_norm(const Group& group, torch::nn::Module& module, double max_norm) {
  if (!(max_norm > 0)) throw InvalidArgument(fmt::format("clip_grad_norm: max_norm {}", max_norm));
  const auto layers = find_split_layers(module, group.state()->ranks());
  if (!layers.of_other_groups.empty()) {
    throw InvalidArgument(
        fmt::format("clip_grad_norm over group \"{}\": layer \"{}\" is split over another one",
                    group.name(), layers.of_other_groups.front()));
  }
  double split = 0;
  double whole = 0;
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : module.parameters()) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
    (layers.has(parameter) ? split : whole) += squares_of(parameter.grad());
  }
  const auto label = fmt::format("norm of gradients, at most {}", max_norm);
  group.all_reduce({&split, 1, DType::float64}, Reduction::sum, {.label = label});
  for (auto* layer : layers.split) split += layer->kept_squares();
  const double norm = std::sqrt(split + whole);
  const double scale = max_norm / (norm + 1e-6);
  if (!(scale >= 1)) {  // a norm that is not a number makes all gradients NaN, as torch does
    const torch::NoGradGuard no_grad;
    for (auto& gradient : gradients) gradient.mul_(scale);
    for (auto* layer : layers.split) layer->scale_kept(scale);
  }
  return norm;
}

torch::Tensor gather_whole(const Group& group, const SplitTensor& tensor, int root) {
  const torch::NoGradGuard no_grad;
  const auto counts = counts_of(group, tensor);
  const auto rows = resolved(tensor.rows.detach()).contiguous();
  auto sizes = rows.sizes().vec();
  sizes.at(0) = tensor.of_rows;
  torch::Tensor whole;
  if (group.rank() == root) whole = torch::empty(sizes, rows.options().requires_grad(false));
  group.gather_variable(view_of(rows),
                        whole.defined() ? view_of(whole) : View{nullptr, 0, dtype_of(rows)}, counts,
                        root, {.label = tensor.name});
  return whole;
}

void scatter_whole(const Group& group, const SplitTensor& tensor, const torch::Tensor& whole,
                   int root) {
  const torch::NoGradGuard no_grad;
  const bool is_root = group.rank() == root;
  const auto why_not = is_root ? refusal(tensor, whole) : "";
  auto counts = counts_of(group, tensor);
  std::int64_t refused = why_not.empty() ? 0 : 1;
  group.broadcast({&refused, 1, DType::int64}, root, {.label = tensor.name});
  if (!why_not.empty()) throw InvalidArgument(why_not);
  if (refused != 0) {
    const int rank = group.job_rank(root);
    throw PeerFailed(rank, 0,
                     fmt::format("rank {} has no whole of \"{}\", and throws InvalidArgument", rank,
                                 tensor.name));
  }
  auto rows = torch::empty(tensor.rows.sizes(), tensor.rows.options().requires_grad(false));
  const auto from = is_root ? resolved(whole.detach()).contiguous() : torch::Tensor();
  group.scatter_variable(is_root ? view_of(from) : View{nullptr, 0, dtype_of(rows)}, view_of(rows),
                         counts, root, {.label = tensor.name});
  tensor.rows.detach().copy_(rows);
}

void take_rows(const SplitTensor& tensor, const torch::Tensor& whole) {
  const torch::NoGradGuard no_grad;
  if (const auto why_not = refusal(tensor, whole); !why_not.empty()) throw InvalidArgument(why_not);
  tensor.rows.detach().copy_(whole.slice(0, tensor.first, tensor.first + tensor.rows.size(0)));
}

}  // namespace tutti
