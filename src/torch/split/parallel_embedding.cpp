#include "tutti/parallel_embedding.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "torch/model/resolved.h"
#include "torch/ops/collective_node.h"
#include "torch/split/layer_agreement.h"
#include "torch/split/split_rows.h"
#include "tutti/error.h"
#include "tutti/ops.h"
#include "tutti/share.h"

namespace tutti {
namespace {

using Rows = std::vector<std::int64_t>;

constexpr std::int64_t kRefused = -1;  ///< instead of the number of a member's look-ups

/// What a look-up needs to be undone.
struct Route {
  torch::Tensor order;  ///< this member's positions, by owner
  Rows given;           ///< look-ups of this member, by owner
  Rows taken;           ///< those that this one answers, by member
  torch::Tensor asked;  ///< this member's rows, by member, then position
};

torch::Tensor positions(const std::vector<Rows>& by_owner) {
  Rows order;
  for (const auto& some : by_owner) order.insert(order.end(), some.begin(), some.end());
  return torch::tensor(order, torch::kInt64);
}

}  // namespace

ParallelEmbeddingImpl::ParallelEmbeddingImpl(const Group& group,
                                             const ParallelEmbeddingOptions& options)
    : SplitModule(group, "ParallelEmbedding"), options_(options) {
  if (options_.rows < 1 || options_.dim < 1) {
    throw InvalidArgument(
        fmt::format("ParallelEmbedding: {} rows of {} elements", options_.rows, options_.dim));
  }
  if (!c10::isFloatingType(options_.dtype)) {
    throw InvalidArgument(
        fmt::format("ParallelEmbedding: parameters of type {}", c10::toString(options_.dtype)));
  }
  auto& padding = options_.padding_idx;
  if (padding && (*padding < -options_.rows || *padding >= options_.rows)) {
    throw InvalidArgument(fmt::format("ParallelEmbedding: padding_idx {} is none of {} rows",
                                      *padding, options_.rows));
  }
  if (padding && *padding < 0) padding = *padding + options_.rows;
  const auto seed = agree_on_layer(group, "ParallelEmbedding",
                                   {{"rows", std::to_string(options_.rows)},
                                    {"dim", std::to_string(options_.dim)},
                                    {"dtype", c10::toString(options_.dtype)},
                                    {"padding_idx", padding ? std::to_string(*padding) : "none"}},
                                   options_.seed);
  require_room(
      group,
      fmt::format("ParallelEmbedding of {} rows of {} elements", options_.rows, options_.dim),
      most_bytes(group, options_.rows, options_.dim, options_.dtype));
  const auto [first, last] = share_of(options_.rows, group);
  first_ = first;
  weight = register_parameter("weight", torch::empty({last - first, options_.dim}, options_.dtype));
  draw_rows(weight, first_, seed, 0, [](torch::Tensor& block, torch::Generator& generator) {
    block.normal_(0, 1, generator);
  });
  note_rows();
  if (!padding || *padding < first || *padding >= last) return;
  const torch::NoGradGuard no_grad;
  weight[*padding - first].zero_();
}

/// The inverse of share_of().
std::int64_t ParallelEmbeddingImpl::owner_of(std::int64_t row) const {
  const std::int64_t members = group().size();
  const auto least = options_.rows / members;
  const auto larger = options_.rows % members;  // members that have one more
  const auto in_larger = larger * (least + 1);
  return row < in_larger ? row / (least + 1) : larger + (row - in_larger) / least;
}

/// Why these cannot be looked up; empty: they can.
std::string ParallelEmbeddingImpl::refusal(const torch::Tensor& indices) const {
  if (!indices.defined() ||
      (indices.scalar_type() != torch::kInt64 && indices.scalar_type() != torch::kInt32)) {
    return "ParallelEmbedding: indices must be integers of 32 or 64 bits";
  }
  const auto wide = resolved(indices.detach().to(torch::kCPU, torch::kInt64)).contiguous();
  const auto* const index = wide.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    if (index[i] >= 0 && index[i] < options_.rows) continue;
    return fmt::format("ParallelEmbedding: index {} at position {} is none of {} rows", index[i], i,
                       options_.rows);
  }
  return "";
}

torch::Tensor ParallelEmbeddingImpl::forward(const torch::Tensor& indices) {
  const auto why_not = refusal(indices);
  const auto members = static_cast<std::size_t>(group().size());
  auto route = std::make_shared<Route>();
  route->given.assign(members, kRefused);
  torch::Tensor wide;
  std::vector<Rows> by_owner(members);
  if (why_not.empty()) {
    wide = resolved(indices.detach().to(torch::kCPU, torch::kInt64)).reshape({-1}).contiguous();
    const auto* const index = wide.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < wide.numel(); ++i) {
      by_owner[static_cast<std::size_t>(owner_of(index[i]))].push_back(i);
    }
    for (std::size_t r = 0; r < members; ++r) {
      route->given[r] = static_cast<std::int64_t>(by_owner[r].size());
    }
  }
  // Who cannot go on says so where all learn how many look-ups come.
  route->taken.resize(members);
  group().all_to_all({route->given.data(), group().size(), DType::int64},
                     {route->taken.data(), group().size(), DType::int64},
                     {.label = label_of("ParallelEmbedding", "numbers of look-ups")});
  if (!why_not.empty()) throw InvalidArgument(why_not);
  for (std::size_t r = 0; r < members; ++r) {
    if (route->taken[r] != kRefused) continue;
    const int rank = group().job_rank(static_cast<int>(r));
    throw PeerFailed(
        rank, 0,
        fmt::format("rank {} has indices that a ParallelEmbedding of {} rows cannot look "
                    "up, and throws InvalidArgument",
                    rank, options_.rows));
  }
  torch::Tensor result;
  {
    const torch::NoGradGuard no_grad;
    route->order = positions(by_owner);
    route->asked =
        ops::all_to_all(group(), wide.index_select(0, route->order), route->given, route->taken,
                        {.label = label_of("ParallelEmbedding", "look-ups")}) -
        first_;
    const auto rows =
        ops::all_to_all(group(), weight.index_select(0, route->asked), route->taken, route->given,
                        {.label = label_of("ParallelEmbedding", "rows looked up")});
    auto sizes = indices.sizes().vec();
    sizes.push_back(options_.dim);
    result = torch::empty(sizes, rows.options());
    result.view({-1, options_.dim}).index_copy_(0, route->order, rows);
  }
  const auto padding = options_.padding_idx.value_or(-1) - first_;
  const bool has_padding = options_.padding_idx.has_value();
  return ops::with_gradient(
      result, weight,
      [group = group(), route, padding, has_padding, like = weight.detach(),
       learns = weight.requires_grad(), owners = shared_weight(),
       label =
           label_of("ParallelEmbedding", "gradient of look-ups")](const torch::Tensor& gradient) {
        const auto dim = like.size(1);
        // A gradient that nobody takes cannot be lost.
        const auto mine =
            (learns || ops::loss_weight(group) != 0 ? weighted(gradient, group, "ParallelEmbedding")
                                                    : torch::zeros_like(gradient))
                .view({-1, dim});
        auto values = ops::all_to_all(group, mine.index_select(0, route->order), route->given,
                                      route->taken, {.label = label});
        if (!learns) return torch::Tensor();
        auto rows = route->asked;
        if (has_padding) {
          const auto kept = (rows != padding).nonzero().flatten();
          rows = rows.index_select(0, kept);
          values = values.index_select(0, kept);
        }
        return of_own_rows(sum_of_rows(rows, values, like), group, *owners, "ParallelEmbedding");
      });
}

std::vector<SplitTensor> ParallelEmbeddingImpl::split_tensors() {
  return {{"weight", weight, first_, options_.rows}};
}

}  // namespace tutti
