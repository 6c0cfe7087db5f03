#include "torch/trainer/folded_gradients.h"

#include <cmath>

#include "torch/model/real_numbers.h"
#include "torch/model/row_tensors.h"
#include "tutti/tensors.h"

namespace tutti {

torch::Tensor FoldedGradients::of(std::size_t parameter, const Verdict& verdict) {
  const auto gradient = on_host(parameter, verdict);
  return gradient.defined() ? gradient.to(model_.device()) : gradient;
}

torch::Tensor FoldedGradients::on_host(std::size_t parameter, const Verdict& verdict) {
  if (!exchange_.nodes().touched(parameter)) return {};
  const auto p = static_cast<std::uint32_t>(parameter);
  if (model_.is_per_replica(parameter)) return replicas_->gradient(p);
  const auto& tensor = model_.tensor(parameter);
  const auto& entry = exchange_.plan().parameters()[parameter];
  const auto type = scalar_type_of(entry.node_type);
  if (entry.row_sparse()) {
    OutgoingRows rows(tensor, type, rows_.max_touched(p));
    rows_.read_rows(p, [&](const RowList& some) { rows.append(some); });
    return rows.tensor(type);
  }
  auto gradient = torch::empty_strided(tensor.sizes(), tensor.strides(),
                                       torch::dtype(type_like(tensor, type)).device(torch::kCPU));
  update_.read_gradient(verdict, p, static_cast<std::byte*>(gradient.data_ptr()));
  return gradient;
}

double FoldedGradients::norm(const Verdict& verdict) {
  if (verdict.norm) return *verdict.norm;
  double total = 0;
  for (std::size_t p = 0; p < model_.parameters().size(); ++p) {
    if (!exchange_.nodes().touched(p)) continue;
    if (model_.row_sparse(p)) {
      total += rows_.squares_of(static_cast<std::uint32_t>(p));
      continue;
    }
    if (!model_.is_per_replica(p)) total += squares_of(on_host(p, verdict));
  }
  if (replicas_ != nullptr) total += replicas_->squares();
  return std::sqrt(total);
}

}  // namespace tutti
