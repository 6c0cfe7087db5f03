#include "run/state/tensor_view.h"

#include <cstring>

namespace tutti {
namespace {

/// Calls `copy(element, row)` with the places of each element, in bytes, in row-major order.
template <class Copy>
void for_elements(const TensorView& view, std::size_t dimension, std::byte* element,
                  std::size_t& row, const Copy& copy) {
  const auto size = size_of(view.type);
  if (dimension == view.shape.size()) {
    copy(element, row);
    row += size;
    return;
  }
  const auto stride = view.strides[dimension] * static_cast<std::int64_t>(size);
  for (std::int64_t i = 0; i < view.shape[dimension]; ++i, element += stride) {
    for_elements(view, dimension + 1, element, row, copy);
  }
}

}  // namespace

std::size_t bytes_of(const TensorView& view) {
  std::size_t bytes = size_of(view.type);
  for (const auto extent : view.shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

bool is_row_major(const TensorView& view) {
  if (bytes_of(view) == 0) return true;
  std::int64_t stride = 1;
  for (std::size_t d = view.shape.size(); d-- > 0;) {
    if (view.shape[d] != 1 && view.strides[d] != stride) return false;
    stride *= view.shape[d];
  }
  return true;
}

std::span<const std::byte> rows_of(const TensorView& view, std::vector<std::byte>& copy) {
  if (is_row_major(view)) return {view.data, bytes_of(view)};
  copy.resize(bytes_of(view));
  const auto size = size_of(view.type);
  std::size_t row = 0;
  for_elements(view, 0, view.data, row, [&](const std::byte* element, std::size_t at) {
    std::memcpy(copy.data() + at, element, size);
  });
  return copy;
}

void set_rows(const TensorView& view, std::span<const std::byte> rows) {
  const auto size = size_of(view.type);
  std::size_t row = 0;
  for_elements(view, 0, view.data, row, [&](std::byte* element, std::size_t at) {
    std::memcpy(element, rows.data() + at, size);
  });
}

}  // namespace tutti
