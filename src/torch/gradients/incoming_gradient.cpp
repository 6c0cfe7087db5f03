#include "torch/gradients/incoming_gradient.h"

#include <fmt/format.h>

#include <span>

#include "kernels/hash.h"
#include "torch/model/real_numbers.h"
#include "torch/model/resolved.h"
#include "tutti/error.h"

namespace tutti {
namespace {

torch::Tensor laid_out_as(const torch::Tensor& like, const torch::Tensor& gradient) {
  if (gradient.strides() == like.strides() && gradient.is_non_overlapping_and_dense() &&
      is_resolved(gradient)) {
    return gradient;
  }
  auto dense = torch::empty_strided(like.sizes(), like.strides(), like.options());
  dense.copy_(gradient);
  return dense;
}

}  // namespace

void require_plain(const torch::Tensor& gradient, const std::string& name, bool row_sparse) {
  if (gradient.layout() != torch::kStrided && !row_sparse) {
    throw InvalidArgument(
        fmt::format("{} has a sparse gradient, but it is not row-sparse: declare it so "
                    "(row_sparse in the options), or build its layer with sparse(false)",
                    name));
  }
  if (torch::GradMode::is_enabled() || gradient.requires_grad()) {
    throw Unsupported(fmt::format(
        "{}: a gradient made with create_graph cannot be reduced; use "
        "torch::autograd::grad for the inner derivative and a plain backward for the last",
        name));
  }
}

bool is_sole_owner(const torch::Tensor& gradient) {
  if (gradient.use_count() != 1) return false;
  const auto owners = gradient.unsafeGetTensorImpl()->unsafe_storage().use_count();
  // torch's backwards transpose what they computed: such a view keeps its base.
  return gradient.is_view() ? owners == 2 && gradient._base().use_count() == 1 : owners == 1;
}

IncomingGradient::IncomingGradient(const torch::Tensor& gradient, const torch::Tensor& parameter,
                                   const std::string& name, bool row_sparse)
    : is_rows_(row_sparse), is_alone_(!row_sparse && is_sole_owner(gradient)) {
  const torch::NoGradGuard no_grad;
  if (row_sparse && gradient.layout() != torch::kStrided) {
    take_rows(gradient, parameter, name);
  } else {
    const auto values = laid_out_as(parameter, gradient);
    is_alone_ = is_alone_ || !values.is_same(gradient);
    values_ = as_reals(values);
  }
}

void IncomingGradient::take_rows(const torch::Tensor& gradient, const torch::Tensor& parameter,
                                 const std::string& name) {
  if (gradient.layout() != torch::kSparse || gradient.sparse_dim() != 1) {
    throw Unsupported(
        fmt::format("{}: its gradient is {} along {} dimensions; row-sparse ones are "
                    "sparse along the first",
                    name, c10::str(gradient.layout()),
                    gradient.layout() == torch::kSparse ? gradient.sparse_dim() : gradient.dim()));
  }
  if (!gradient.device().is_cpu() || gradient.scalar_type() != parameter.scalar_type()) {
    throw InvalidArgument(fmt::format(
        "{}: its gradient is {} on {}, but it is {}", name, c10::toString(gradient.scalar_type()),
        gradient.device().str(), c10::toString(parameter.scalar_type())));
  }
  rows_ = gradient._indices().flatten().contiguous();
  values_ = gradient._values().resolve_neg().contiguous();
  const std::span<const std::int64_t> rows(rows_.const_data_ptr<std::int64_t>(),
                                           static_cast<std::size_t>(rows_.numel()));
  if (rows.size() > static_cast<std::size_t>(kMaxRows)) {
    throw Unsupported(
        fmt::format("{}: a gradient of {} rows, repeated ones counted", name, rows.size()));
  }
  // torch does not look where a sparse tensor's indices point.
  for (const auto row : rows) {
    if (row >= 0 && row < parameter.size(0)) continue;
    throw InvalidArgument(fmt::format("{}: its gradient has row {}, but it has {} rows", name, row,
                                      parameter.size(0)));
  }
}

RowEntries IncomingGradient::rows() const {
  const auto count = values_.dim() == 0 ? 1 : values_.size(0);
  return {rows_.defined() ? rows_.const_data_ptr<std::int64_t>() : nullptr, values_.data_ptr(),
          count};
}

std::uint64_t IncomingGradient::hash() const {
  if (is_rows_ && rows().count == 0) return 0;
  const auto where = rows_.defined() ? digest(rows_.const_data_ptr(), rows_.nbytes()) : 0;
  const auto values = values_.cpu();
  const auto hash = digest(values.const_data_ptr(), values.nbytes(), where);
  return hash != 0 ? hash : 1;
}

}  // namespace tutti
