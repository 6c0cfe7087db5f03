#include "torch/ops/rows.h"

#include <fmt/format.h>

#include <cstddef>
#include <numeric>
#include <optional>

#include "torch/model/layout.h"
#include "torch/model/moved_tensor.h"
#include "torch/model/real_numbers.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti::ops {
namespace {

/// In real numbers. InvalidArgument where all together are more than can be counted in bytes.
Rows counts_of(const torch::Tensor& x, std::span<const std::int64_t> rows, const char* what) {
  require_rows(x, what);
  const auto row = c10::multiply_integers(x.sizes().slice(1)) * reals_of_each(x);
  const auto most = PTRDIFF_MAX / static_cast<std::int64_t>(x.element_size());
  Rows counts(rows.begin(), rows.end());
  std::int64_t sum = 0;
  for (auto& count : counts) {
    const auto number = count;
    if (__builtin_mul_overflow(number, row, &count) || __builtin_add_overflow(sum, count, &sum) ||
        sum > most) {
      throw InvalidArgument(fmt::format("{}: {} rows of {} elements are more than memory can hold",
                                        what, number, row));
    }
  }
  return counts;
}

std::int64_t sum_of(const Rows& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

/// The own row count of this member.
std::int64_t own_of(const Group& group, const Rows& rows) {
  return rows[static_cast<std::size_t>(group.rank())];
}

}  // namespace

void require_rows(const torch::Tensor& x, const char* what) {
  if (x.dim() != 0) return;
  throw InvalidArgument(fmt::format("{}: a scalar has no rows along dim 0", what));
}

Rows checked_rows(const Group& group, std::span<const std::int64_t> rows, const char* what) {
  if (rows.size() != static_cast<std::size_t>(group.size())) {
    throw InvalidArgument(
        fmt::format("{}: {} numbers of rows for {} members", what, rows.size(), group.size()));
  }
  std::int64_t sum = 0;
  for (std::size_t member = 0; member < rows.size(); ++member) {
    if (rows[member] >= 0 && !__builtin_add_overflow(sum, rows[member], &sum)) continue;
    throw InvalidArgument(
        fmt::format("{}: rank {} cannot have {} rows", what, member, rows[member]));
  }
  return {rows.begin(), rows.end()};
}

Rows rows_of_all(const Group& group, const torch::Tensor& x, const char* what,
                 const CollectiveOptions& options) {
  require_rows(x, what);
  const std::int64_t own = x.size(0);
  Rows rows(static_cast<std::size_t>(group.size()));
  group.all_gather({&own, 1, DType::int64}, {rows.data(), group.size(), DType::int64},
                   {.label = options.label, .deadline = options.deadline});
  return rows;
}

torch::Tensor with_rows(const torch::Tensor& like, std::int64_t rows) {
  auto sizes = like.sizes().vec();
  sizes.at(0) = rows;
  return torch::empty(sizes, like.options().requires_grad(false));
}

torch::Tensor stand_in(const torch::Tensor& x) {
  return torch::empty({0}, x.options().requires_grad(false));
}

torch::Tensor gather_rows(const Group& group, const torch::Tensor& x, const Rows& rows,
                          const CollectiveOptions& options) {
  const auto counts = counts_of(x, rows, "all_gather");
  auto out = with_rows(x, sum_of(rows));
  MovedTensor in(group, x, options);
  MovedTensor result(group, out, options);
  group.all_gather_variable(in.values(), result.room(), counts, Layout::of_row(x).with(options));
  result.give();
  return out;
}

torch::Tensor scatter_sums(const Group& group, const torch::Tensor& x, const Rows& rows,
                           Reduction reduction, const CollectiveOptions& options) {
  const auto counts = counts_of(x, rows, "reduce_scatter");
  auto out = with_rows(x, own_of(group, rows));
  MovedTensor in(group, x, options);
  MovedTensor result(group, out, options);
  group.reduce_scatter_variable(in.values(), result.room(), counts, reduction,
                                Layout::of_row(x).with(options));
  result.give();
  return out;
}

torch::Tensor gather_to(const Group& group, const torch::Tensor& x, const Rows& rows, int root,
                        const CollectiveOptions& options) {
  const auto counts = counts_of(x, rows, "gather");
  const bool is_root = group.rank() == root;
  auto out = is_root ? with_rows(x, sum_of(rows)) : stand_in(x);
  MovedTensor in(group, x, options);
  MovedTensor result(group, out, options);
  group.gather_variable(in.values(), is_root ? result.room() : View{nullptr, 0, dtype_of(x)},
                        counts, root, Layout::of_row(x).with(options));
  if (is_root) result.give();
  return out;
}

torch::Tensor scatter_from(const Group& group, const torch::Tensor& x, const torch::Tensor& like,
                           const Rows& rows, int root, const CollectiveOptions& options) {
  const auto counts = counts_of(like, rows, "scatter");
  auto out = with_rows(like, own_of(group, rows));
  const bool is_root = group.rank() == root;
  MovedTensor result(group, out, options);
  std::optional<MovedTensor> in;
  if (is_root) in.emplace(group, x, options);
  group.scatter_variable(in ? in->values() : View{nullptr, 0, dtype_of(like)}, result.room(),
                         counts, root, Layout::of_row(like).with(options));
  result.give();
  return out;
}

torch::Tensor exchange(const Group& group, const torch::Tensor& x, const Rows& to, const Rows& from,
                       const CollectiveOptions& options) {
  const auto given = counts_of(x, to, "all_to_all");
  const auto taken = counts_of(x, from, "all_to_all");
  auto out = with_rows(x, sum_of(from));
  MovedTensor in(group, x, options);
  MovedTensor result(group, out, options);
  group.all_to_all_variable(in.values(), given, result.room(), taken,
                            Layout::of_row(x).with(options));
  result.give();
  return out;
}

}  // namespace tutti::ops
