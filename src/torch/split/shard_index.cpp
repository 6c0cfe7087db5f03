#include "tutti/shard_index.h"

#include <fmt/format.h>

#include "torch/model/resolved.h"
#include "tutti/error.h"
#include "tutti/share.h"

namespace tutti {
namespace {

/// Labels in 64 bits, each of which is a class or `ignore`.
torch::Tensor checked(const torch::Tensor& labels, std::int64_t classes, std::int64_t ignore,
                      const char* what) {
  if (classes < 1) {
    throw InvalidArgument(
        fmt::format("{}: {} classes: at least 1 is needed. Their number is not taken from the "
                    "labels, as a shard "
                    "has some of them alone: give that of the whole data",
                    what, classes));
  }
  if (!labels.defined() ||
      (labels.scalar_type() != torch::kInt64 && labels.scalar_type() != torch::kInt32)) {
    throw InvalidArgument(fmt::format("{}: labels must be integers of 32 or 64 bits", what));
  }
  const auto wide = resolved(labels.to(torch::kCPU, torch::kInt64)).contiguous();
  const auto* const label = wide.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    if (label[i] == ignore || (label[i] >= 0 && label[i] < classes)) continue;
    throw InvalidArgument(fmt::format("{}: label {} at position {} is none of {} classes", what,
                                      label[i], i, classes));
  }
  return wide;
}

}  // namespace

torch::Tensor shard_index(const torch::Tensor& labels, std::int64_t classes, std::int64_t shards,
                          std::int64_t shard, std::int64_t ignore) {
  const torch::NoGradGuard no_grad;
  const auto wide = checked(labels, classes, ignore, "shard_index");
  if (shards < 1 || shard < 0 || shard >= shards) {
    throw InvalidArgument(fmt::format("shard_index: shard {} of {}", shard, shards));
  }
  if (ignore >= 0 && ignore < classes) {
    throw InvalidArgument(
        fmt::format("shard_index: ignore {} is one of {} classes", ignore, classes));
  }
  const auto [first, last] = share_of(classes, shard, shards);
  const auto is_here = (wide >= first).logical_and(wide < last);
  return torch::where(is_here, wide - first, torch::full_like(wide, ignore))
      .to(labels.scalar_type());
}

torch::Tensor one_hot(const torch::Tensor& labels, std::int64_t classes, std::int64_t ignore) {
  const torch::NoGradGuard no_grad;
  const auto wide = checked(labels, classes, ignore, "one_hot");
  const auto is_label = (wide != ignore).to(torch::kInt64).unsqueeze(-1);
  const auto column = torch::where(wide != ignore, wide, torch::zeros_like(wide)).unsqueeze(-1);
  auto sizes = wide.sizes().vec();
  sizes.push_back(classes);
  return torch::zeros(sizes, torch::kInt64).scatter_(-1, column, is_label);
}

}  // namespace tutti
