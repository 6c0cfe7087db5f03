#include "torch/model/row_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "torch/model/incoming_gradient.h"
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

RowEntries IncomingRows::entries() const {
  const auto count = values_.dim() == 0 ? 1 : values_.size(0);
  return {rows_.defined() ? rows_.const_data_ptr<std::int64_t>() : nullptr, values_.data_ptr(),
          count};
}

OutgoingRows::OutgoingRows(const torch::Tensor& like, torch::ScalarType type, std::int64_t max_rows)
    : like_(like.detach()), rows_(torch::empty({1, max_rows}, torch::kInt64)) {
  auto sizes = like.sizes().vec();
  sizes[0] = max_rows;
  values_ = torch::empty(sizes, type);
}

void OutgoingRows::append(const RowList& list) {
  const auto row_bytes =
      static_cast<std::size_t>(like_.numel() / like_.size(0)) * values_.element_size();
  std::copy(list.rows.begin(), list.rows.end(), rows_.data_ptr<std::int64_t>() + count_);
  std::memcpy(
      static_cast<std::byte*>(values_.data_ptr()) + static_cast<std::size_t>(count_) * row_bytes,
      list.values, list.rows.size() * row_bytes);
  count_ += static_cast<std::int64_t>(list.rows.size());
}

torch::Tensor OutgoingRows::tensor(torch::ScalarType type) const {
  const torch::NoGradGuard no_grad;
  return at::_sparse_coo_tensor_unsafe(rows_.narrow(1, 0, count_).contiguous(),
                                       values_.narrow(0, 0, count_).to(type), like_.sizes(),
                                       like_.options().dtype(type).layout(torch::kSparse),
                                       /*is_coalesced=*/true);
}

}  // namespace tutti
