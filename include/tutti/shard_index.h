#pragma once

// Labels beside a classifier that is split over workers by share_of().
//
// Threads: pure functions. Failure: InvalidArgument names the first label that is no class, and its
// position among all; nothing is sent.

#include <torch/torch.h>

#include <cstdint>

namespace tutti {

/// The row of each label among those that shard `shard` of `shards` has of `classes`: `ignore` for
/// labels that are `ignore`, and for those that another shard has. Over all shards each other label
/// has exactly one row. Integers of any shape, 32 or 64 bits, and the result is of their type;
/// `ignore` must not be a class.
torch::Tensor shard_index(const torch::Tensor& labels, std::int64_t classes, std::int64_t shards,
                          std::int64_t shard, std::int64_t ignore = -1);

/// [*, classes], 1 at the label and 0 elsewhere, in 64-bit integers; zeros alone where the label is
/// `ignore`.
torch::Tensor one_hot(const torch::Tensor& labels, std::int64_t classes, std::int64_t ignore = -1);

}  // namespace tutti
