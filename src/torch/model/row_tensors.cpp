#include "torch/model/row_tensors.h"

#include <algorithm>
#include <cstring>

namespace tutti {

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
