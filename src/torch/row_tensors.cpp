#include "torch/row_tensors.h"

#include <fmt/format.h>

#include <cstring>

#include "torch/incoming_gradient.h"
#include "tutti/error.h"

namespace tutti {

IncomingRows::IncomingRows(const torch::Tensor& gradient, const torch::Tensor& parameter,
                           const std::string& name) {
  const torch::NoGradGuard no_grad;
  if (gradient.layout() == torch::kStrided) {
    values_ = laid_out_as(parameter, gradient);
    return;
  }
  if (gradient.layout() != torch::kSparse || gradient.sparse_dim() != 1) {
    throw Unsupported(
        fmt::format("parameter \"{}\": its gradient is {} along {} dimensions; row-sparse ones are "
                    "sparse along the first",
                    name, c10::str(gradient.layout()),
                    gradient.layout() == torch::kSparse ? gradient.sparse_dim() : gradient.dim()));
  }
  if (!gradient.device().is_cpu() || gradient.scalar_type() != parameter.scalar_type()) {
    throw BadInput(fmt::format("parameter \"{}\": its gradient is {} on {}, but it is {}", name,
                               c10::toString(gradient.scalar_type()), gradient.device().str(),
                               c10::toString(parameter.scalar_type())));
  }
  rows_ = gradient._indices().flatten().contiguous();
  values_ = gradient._values().resolve_neg().contiguous();
}

RowEntries IncomingRows::entries() const {
  const auto count = values_.dim() == 0 ? 1 : values_.size(0);
  return {rows_.defined() ? rows_.const_data_ptr<std::int64_t>() : nullptr, values_.data_ptr(),
          count};
}

void OutgoingRows::append(std::span<const std::uint32_t> rows, const std::byte* values,
                          std::size_t bytes_of_row) {
  rows_.insert(rows_.end(), rows.begin(), rows.end());
  values_.insert(values_.end(), values, values + rows.size() * bytes_of_row);
}

torch::Tensor OutgoingRows::tensor(const torch::Tensor& like, torch::ScalarType type) const {
  const torch::NoGradGuard no_grad;
  const auto count = static_cast<std::int64_t>(rows_.size());
  auto sizes = like.sizes().vec();
  sizes[0] = count;
  const auto rows = torch::empty({1, count}, torch::kInt64);
  const auto values = torch::empty(sizes, type_);
  if (count > 0) {
    std::memcpy(rows.data_ptr(), rows_.data(), rows_.size() * sizeof(std::int64_t));
    std::memcpy(values.data_ptr(), values_.data(), values_.size());
  }
  return at::_sparse_coo_tensor_unsafe(rows, values.to(type), like.sizes(),
                                       like.options().dtype(type).layout(torch::kSparse),
                                       /*is_coalesced=*/true);
}

}  // namespace tutti
