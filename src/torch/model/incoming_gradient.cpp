#include "torch/model/incoming_gradient.h"

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {

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

torch::Tensor laid_out_as(const torch::Tensor& like, const torch::Tensor& gradient) {
  if (gradient.strides() == like.strides() && gradient.is_non_overlapping_and_dense() &&
      !gradient.is_neg()) {
    return gradient;
  }
  auto dense = torch::empty_strided(like.sizes(), like.strides(), like.options());
  dense.copy_(gradient);
  return dense;
}

bool is_sole_owner(const torch::Tensor& gradient) {
  if (gradient.use_count() != 1) return false;
  const auto owners = gradient.unsafeGetTensorImpl()->unsafe_storage().use_count();
  // torch's backwards transpose what they computed: such a view keeps its base.
  return gradient.is_view() ? owners == 2 && gradient._base().use_count() == 1 : owners == 1;
}

}  // namespace tutti
