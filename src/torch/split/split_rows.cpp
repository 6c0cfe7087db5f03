#include "torch/split/split_rows.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "run/data/leaf_seed.h"
#include "torch/model/loss_weight.h"
#include "torch/ops/collective_node.h"
#include "tutti/ops.h"
#include "tutti/share.h"

namespace tutti {
namespace {

constexpr std::int64_t kBlock = 64;  ///< rows that one generator draws

template <class Value>
void add_rows(const torch::Tensor& values, const std::vector<std::int64_t>& order,
              const std::vector<std::int64_t>& place, torch::Tensor& sums) {
  const auto width = sums.size(0) == 0 ? 0 : sums.numel() / sums.size(0);
  const auto* const from = values.const_data_ptr<Value>();
  auto* const to = sums.data_ptr<Value>();
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto* const value = from + order[i] * width;
    auto* const sum = to + place[i] * width;
    const bool is_first = i == 0 || place[i] != place[i - 1];
    for (std::int64_t k = 0; k < width; ++k) sum[k] = is_first ? value[k] : sum[k] + value[k];
  }
}

}  // namespace

std::uint64_t most_bytes(const Group& group, std::int64_t rows, std::int64_t width,
                         torch::ScalarType type) {
  const auto [first, last] = share_of(rows, 0, group.size());
  std::uint64_t bytes = 0;
  const bool is_too_large = __builtin_mul_overflow(static_cast<std::uint64_t>(last - first),
                                                   static_cast<std::uint64_t>(width), &bytes) ||
                            __builtin_mul_overflow(bytes, c10::elementSize(type), &bytes);
  return is_too_large ? std::numeric_limits<std::uint64_t>::max() : bytes;
}

void draw_rows(const torch::Tensor& rows, std::int64_t first, std::uint64_t seed,
               std::int64_t tensor,
               const std::function<void(torch::Tensor& block, torch::Generator& generator)>& draw) {
  const torch::NoGradGuard no_grad;
  const auto last = first + rows.size(0);
  auto sizes = rows.sizes().vec();
  sizes[0] = kBlock;
  auto block = torch::empty(sizes, rows.options().requires_grad(false));
  for (auto at = first; at < last;) {
    const auto number = at / kBlock;
    auto generator = at::make_generator<at::CPUGeneratorImpl>(leaf_seed(seed, tensor, number));
    draw(block, generator);
    const auto end = std::min(last, (number + 1) * kBlock);
    rows.slice(0, at - first, end - first)
        .copy_(block.slice(0, at - number * kBlock, end - number * kBlock));
    at = end;
  }
}

torch::Tensor weighted(const torch::Tensor& gradient, const Group& group,
                       const std::string& layer) {
  const double weight = ops::loss_weight(group);
  if (weight == 1) return gradient;
  return weight == 0 ? given_without_weight(gradient, layer) : gradient * weight;
}

torch::Tensor of_own_rows(const torch::Tensor& gradient, const Group& group, double owners,
                          const std::string& layer) {
  const double weight = ops::loss_weight(group);
  if (weight == owners) return gradient;
  if (owners == 0) return torch::zeros_like(gradient);  // NaN, too
  if (weight != 0) return gradient * (owners / weight);
  refuse_without_weight(gradient, layer);
  return gradient;
}

torch::Tensor enter_weighted(const torch::Tensor& x, const Group& group, const char* layer) {
  return ops::with_gradient(x.detach(), x, [group, layer](const torch::Tensor& gradient) {
    return weighted(gradient, group, layer);
  });
}

torch::Tensor leave_weighted(const torch::Tensor& x, const Group& group, const char* layer) {
  return ops::with_gradient(
      x.detach(), x, [group, layer, learns = x.requires_grad()](const torch::Tensor& gradient) {
        const double weight = ops::loss_weight(group);
        if (weight == 0 && learns) return taken_without_weight(gradient, layer);
        return weight == 1 || weight == 0 ? gradient : gradient * (1 / weight);
      });
}

torch::Tensor sum_of_rows(const torch::Tensor& rows, const torch::Tensor& values,
                          const torch::Tensor& like) {
  const torch::NoGradGuard no_grad;
  const auto* const row = rows.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows.numel()));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::ranges::stable_sort(order, {}, [row](std::int64_t i) { return row[i]; });
  std::vector<std::int64_t> place;  // of each in `order` among the distinct rows
  std::vector<std::int64_t> distinct;
  for (const auto i : order) {
    if (distinct.empty() || distinct.back() != row[i]) distinct.push_back(row[i]);
    place.push_back(static_cast<std::int64_t>(distinct.size()) - 1);
  }
  // Narrow types are added in 32 bits.
  const bool is_double = like.scalar_type() == torch::kFloat64;
  const auto type = is_double ? torch::kFloat64 : torch::kFloat32;
  const auto wide = values.to(type).contiguous();
  auto sizes = like.sizes().vec();
  sizes[0] = static_cast<std::int64_t>(distinct.size());
  auto sums = torch::empty(sizes, type);
  if (is_double) {
    add_rows<double>(wide, order, place, sums);
  } else {
    add_rows<float>(wide, order, place, sums);
  }
  return at::_sparse_coo_tensor_unsafe(torch::tensor(distinct, torch::kInt64).unsqueeze(0),
                                       sums.to(like.scalar_type()), like.sizes(),
                                       like.options().requires_grad(false).layout(torch::kSparse),
                                       /*is_coalesced=*/true);
}

}  // namespace tutti
