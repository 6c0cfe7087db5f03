#include <fmt/format.h>

#include "kernels/fold_program.h"
#include "tutti/data_parallel.h"
#include "tutti/error.h"

namespace tutti {

std::vector<BatchPart> split(const std::vector<torch::Tensor>& batch, std::int64_t n) {
  if (n < 1) throw BadInput(fmt::format("split: {} parts", n));
  if (batch.empty()) throw BadInput("split: no tensors");
  for (const auto& tensor : batch) {
    if (!tensor.defined() || tensor.dim() == 0) throw BadInput("split: a tensor without dim 0");
    if (tensor.size(0) != batch.front().size(0)) {
      throw BadInput(
          fmt::format("split: tensors have {} and {} rows", batch.front().size(0), tensor.size(0)));
    }
  }
  std::vector<BatchPart> parts;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto [begin, end] =
        share_of(batch.front().size(0), static_cast<int>(i), static_cast<int>(n));
    BatchPart part;
    part.weight = static_cast<double>(end - begin);
    for (const auto& tensor : batch) part.tensors.push_back(tensor.narrow(0, begin, end - begin));
    parts.push_back(std::move(part));
  }
  return parts;
}

std::pair<std::int64_t, std::int64_t> share_of(std::int64_t total, const Group& group) {
  if (total < 0) throw BadInput(fmt::format("share_of: {} micro-batches", total));
  return share_of(total, group.rank(), group.size());
}

std::pair<std::int64_t, std::int64_t> share_of(std::int64_t total, const Job& job) {
  if (total < 0) throw BadInput(fmt::format("share_of: {} micro-batches", total));
  return share_of(total, job.rank(), job.size());
}

}  // namespace tutti
