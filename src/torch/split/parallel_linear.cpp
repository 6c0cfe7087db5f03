#include "tutti/parallel_linear.h"

#include <fmt/format.h>

#include <cmath>

#include "torch/split/layer_agreement.h"
#include "torch/split/split_rows.h"
#include "tutti/error.h"
#include "tutti/ops.h"
#include "tutti/share.h"

namespace tutti {

ParallelLinearImpl::ParallelLinearImpl(const Group& group, const ParallelLinearOptions& options)
    : SplitModule(group, "ParallelLinear"), options_(options) {
  if (options_.features < 1 || options_.classes < 1) {
    throw InvalidArgument(fmt::format("ParallelLinear: {} features, {} classes", options_.features,
                                      options_.classes));
  }
  if (!c10::isFloatingType(options_.dtype)) {
    throw InvalidArgument(
        fmt::format("ParallelLinear: parameters of type {}", c10::toString(options_.dtype)));
  }
  const auto seed = agree_on_layer(group, "ParallelLinear",
                                   {{"features", std::to_string(options_.features)},
                                    {"classes", std::to_string(options_.classes)},
                                    {"dtype", c10::toString(options_.dtype)},
                                    {"bias", options_.bias ? "yes" : "no"}},
                                   options_.seed);
  require_room(group,
               fmt::format("ParallelLinear of {} classes and {} features", options_.classes,
                           options_.features),
               most_bytes(group, options_.classes, options_.features, options_.dtype));
  const auto [first, last] = share_of(options_.classes, group);
  first_ = first;
  const double bound = 1 / std::sqrt(static_cast<double>(options_.features));
  const auto draw = [bound](torch::Tensor& block, torch::Generator& generator) {
    block.uniform_(-bound, bound, generator);
  };
  weight =
      register_parameter("weight", torch::empty({last - first, options_.features}, options_.dtype));
  draw_rows(weight, first_, seed, 0, draw);
  if (options_.bias) {
    bias = register_parameter("bias", torch::empty({last - first}, options_.dtype));
    draw_rows(bias, first_, seed, 1, draw);
  }
  note_rows();
}

void ParallelLinearImpl::require(const torch::Tensor& x) const {
  if (x.defined() && x.dim() == 2 && x.size(1) == options_.features &&
      x.scalar_type() == weight.scalar_type()) {
    return;
  }
  throw InvalidArgument(fmt::format(
      "ParallelLinear takes {} [b, {}], not {}", c10::toString(weight.scalar_type()),
      options_.features,
      x.defined() ? c10::toString(x.scalar_type()) + (' ' + c10::str(x.sizes())) : "nothing"));
}

/// The logits of all members' samples, of which the gradient comes weighted.
torch::Tensor ParallelLinearImpl::local(const torch::Tensor& x) {
  const ops::UnweightedGuard weighted_here;
  const auto all = ops::all_gather(group(), leave_weighted(x, group(), "ParallelLinear"),
                                   {.label = label_of("ParallelLinear", "features")});
  return torch::linear(all, own_rows(weight), bias.defined() ? own_rows(bias) : bias);
}

torch::Tensor ParallelLinearImpl::forward(const torch::Tensor& x) {
  require(x);
  return enter_weighted(local(x), group(), "ParallelLinear");
}

torch::Tensor ParallelLinearImpl::logits(const torch::Tensor& x) {
  require(x);
  const auto of_all = local(x);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(group().size()));
  const std::int64_t own = x.size(0);
  group().all_gather({&own, 1, DType::int64}, {rows.data(), group().size(), DType::int64},
                     {.label = label_of("ParallelLinear", "samples")});
  // Members' classes are columns of different numbers: elements travel.
  std::vector<std::int64_t> given;
  std::vector<std::int64_t> taken;
  std::vector<std::int64_t> classes;
  for (int r = 0; r < group().size(); ++r) {
    const auto [first, last] = share_of(options_.classes, r, group().size());
    classes.push_back(last - first);
    given.push_back(rows[static_cast<std::size_t>(r)] * of_all.size(1));
    taken.push_back(own * classes.back());
  }
  const ops::UnweightedGuard weighted_here;
  const auto mine = ops::all_to_all(group(), of_all.reshape({-1}), given, taken,
                                    {.label = label_of("ParallelLinear", "logits")});
  std::vector<torch::Tensor> columns;
  std::int64_t at = 0;
  for (std::size_t r = 0; r < classes.size(); ++r) {
    columns.push_back(mine.narrow(0, at, taken[r]).view({own, classes[r]}));
    at += taken[r];
  }
  return enter_weighted(torch::cat(columns, 1), group(), "ParallelLinear");
}

std::vector<SplitTensor> ParallelLinearImpl::split_tensors() {
  std::vector<SplitTensor> tensors = {{"weight", weight, first_, options_.classes}};
  if (bias.defined()) tensors.push_back({"bias", bias, first_, options_.classes});
  return tensors;
}

}  // namespace tutti
