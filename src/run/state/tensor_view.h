#pragma once

// A tensor in a run's own memory, as checkpoints and hashes see it: without a library of tensors.
//
// Threads: pure functions. Failure: none.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "run/files/safetensors_format.h"

namespace tutti {

/// The memory is borrowed.
struct TensorView {
  std::string name;
  StoredType type = StoredType::F32;
  std::vector<std::int64_t> shape = {};    ///< empty for a scalar
  std::vector<std::int64_t> strides = {};  ///< in elements
  std::byte* data = nullptr;
};

std::size_t bytes_of(const TensorView& view);
/// Whether its elements lie one after the other as safetensors store them.
bool is_row_major(const TensorView& view);
/// The tensor's bytes in row-major order: in place, or copied to `copy`.
std::span<const std::byte> rows_of(const TensorView& view, std::vector<std::byte>& copy);
/// The elements become these. `rows` has bytes_of(view).
void set_rows(const TensorView& view, std::span<const std::byte> rows);

}  // namespace tutti
