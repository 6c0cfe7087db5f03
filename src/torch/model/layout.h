#pragma once

// What a collective on tensors needs to know of one besides its elements: that they lie in strides
// in memory, and how, which members compare.
//
// Threads: any. Failure: InvalidArgument for an undefined tensor, Unsupported for one without
// strides or elements.

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdint>

#include "torch/model/resolved.h"
#include "tutti/error.h"
#include "tutti/group.h"

namespace tutti {

/// Before anything else is asked of a tensor: others answer with errors of libtorch's own.
inline void require_strided(const torch::Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument("the tensor is undefined");
  if (tensor.layout() != torch::kStrided) {
    throw Unsupported("sparse and other non-strided tensors: to_dense() makes one that is moved");
  }
  if (tensor.is_cpu() || at::isAccelerator(tensor.device().type())) return;
  throw Unsupported(fmt::format("a tensor on {}: what is moved is on the CPU or on an accelerator",
                                tensor.device().str()));
}

/// Its elements, in the order of memory, are all that lies there.
inline void require_dense(const torch::Tensor& tensor) {
  require_strided(tensor);
  if (!tensor.is_non_overlapping_and_dense()) {
    throw Unsupported("a tensor with holes or overlap: make it contiguous() first");
  }
  if (!is_resolved(tensor)) {
    throw Unsupported(
        "a tensor with torch's negative or conjugate bit, whose memory is not what its elements "
        "are: "
        "resolve_neg() or resolve_conj() makes one that is moved");
  }
}

inline void require_on_cpu(const torch::Tensor& tensor) {
  if (!tensor.device().is_cpu()) {
    throw Unsupported(
        fmt::format("a tensor on {}: collectives move CPU memory", tensor.device().str()));
  }
}

/// Sizes, then strides: equal element counts in another arrangement would be added wrongly. A dim
/// of at most one element is never stepped along, and torch's strides of it are anything: 1 here.
class Layout {
 public:
  explicit Layout(const torch::Tensor& tensor)
      : numbers_(tensor.sizes().begin(), tensor.sizes().end()) {
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
      numbers_.push_back(tensor.size(dim) > 1 && tensor.numel() > 0 ? tensor.stride(dim) : 1);
    }
  }
  /// Of a row along dim 0 of a contiguous tensor, the same however many rows there are.
  static Layout of_row(const torch::Tensor& tensor) {
    Layout row;
    const auto sizes = tensor.sizes().slice(1);
    row.numbers_.assign(sizes.begin(), sizes.end());
    row.numbers_.resize(2 * sizes.size(), 1);
    for (std::size_t dim = sizes.size(); dim-- > 1;) {
      row.numbers_[sizes.size() + dim - 1] = row.numbers_[sizes.size() + dim] * sizes[dim];
    }
    return row;
  }
  bool operator==(const Layout& other) const { return numbers_ == other.numbers_; }
  /// `options` with this layout, which must live as long.
  CollectiveOptions with(const CollectiveOptions& options) const {
    return {.label = options.label,
            .layout = {numbers_.data(), numbers_.size()},
            .deadline = options.deadline};
  }

 private:
  Layout() = default;
  c10::SmallVector<std::int64_t, 8> numbers_;
};

}  // namespace tutti
