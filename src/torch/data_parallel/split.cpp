#include <fmt/format.h>

#include "tutti/data_parallel.h"
#include "tutti/error.h"

namespace tutti {

std::vector<BatchPart> split(const std::vector<torch::Tensor>& batch, std::int64_t n) {
  if (n < 1) throw InvalidArgument(fmt::format("split: {} parts", n));
  if (batch.empty()) throw InvalidArgument("split: no tensors");
  for (const auto& tensor : batch) {
    if (!tensor.defined() || tensor.dim() == 0)
      throw InvalidArgument("split: a tensor without dim 0");
    if (tensor.size(0) != batch.front().size(0)) {
      throw InvalidArgument(
          fmt::format("split: tensors have {} and {} rows", batch.front().size(0), tensor.size(0)));
    }
  }
  std::vector<BatchPart> parts;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto [begin, end] = share_of(batch.front().size(0), i, n);
    BatchPart part;
    part.weight = static_cast<double>(end - begin);
    for (const auto& tensor : batch) part.tensors.push_back(tensor.narrow(0, begin, end - begin));
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace tutti
