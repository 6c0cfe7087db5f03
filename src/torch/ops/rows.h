#pragma once

// Rows along dim 0 that a group's collectives join and give apart. Members compare the other dims
// of each call.
//
// Threads: as Group. Failure: that of Group; InvalidArgument for numbers of rows that cannot be,
// and for a scalar, which has none.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tutti/group.h"

namespace tutti::ops {

using Rows = std::vector<std::int64_t>;

/// Throws for a scalar; `what` begins the text.
void require_rows(const torch::Tensor& x, const char* what);
/// `rows`, one number for each member, none of them negative.
Rows checked_rows(const Group& group, std::span<const std::int64_t> rows, const char* what);
/// How many rows each member has.
Rows rows_of_all(const Group& group, const torch::Tensor& x, const char* what,
                 const CollectiveOptions& options);
/// Uninitialised, in the type and the other dims of `like`.
torch::Tensor with_rows(const torch::Tensor& like, std::int64_t rows);
/// What stands for the result of another member.
torch::Tensor stand_in(const torch::Tensor& x);

// Each moves contiguous rows by the group's call of the same name.
torch::Tensor gather_rows(const Group& group, const torch::Tensor& x, const Rows& rows,
                          const CollectiveOptions& options);
torch::Tensor scatter_sums(const Group& group, const torch::Tensor& x, const Rows& rows,
                           Reduction reduction, const CollectiveOptions& options);
/// A stand-in on the others.
torch::Tensor gather_to(const Group& group, const torch::Tensor& x, const Rows& rows, int root,
                        const CollectiveOptions& options);
/// `like` gives type and the other dims.
torch::Tensor scatter_from(const Group& group, const torch::Tensor& x, const torch::Tensor& like,
                           const Rows& rows, int root, const CollectiveOptions& options);
torch::Tensor exchange(const Group& group, const torch::Tensor& x, const Rows& to, const Rows& from,
                       const CollectiveOptions& options);

}  // namespace tutti::ops
