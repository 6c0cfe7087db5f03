#include "torch/classes/class_rows.h"

#include <ATen/Parallel.h>

#include <bit>
#include <cstddef>
#include <cstring>

namespace tutti {
namespace {

/// Calls each(i, place) for i = 0 … and the place of row i.
template <class Each>
void for_rows(const torch::Tensor& places, const Each& each) {
  const auto* const rows = places.const_data_ptr<std::int32_t>();
  at::parallel_for(0, places.size(0), 1024, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = begin; i < end; ++i) each(i, rows[i]);
  });
}

std::byte* row_of(const torch::Tensor& matrix, std::int64_t row) {
  return static_cast<std::byte*>(matrix.data_ptr()) +
         static_cast<std::size_t>(row * matrix.size(1)) * matrix.element_size();
}

std::size_t row_bytes(const torch::Tensor& matrix) {
  return static_cast<std::size_t>(matrix.size(1)) * matrix.element_size();
}

void round_row(const float* from, c10::BFloat16* to, std::int64_t count, std::uint64_t first,
               std::uint64_t key) {
  for (std::int64_t i = 0; i < count; ++i) {
    auto mixed = static_cast<std::uint32_t>(first + static_cast<std::uint64_t>(i)) ^
                 static_cast<std::uint32_t>(key);
    mixed = (mixed ^ (mixed >> 16)) * 0x85ebca6bU;
    mixed = (mixed ^ (mixed >> 13)) * 0xc2b2ae35U + static_cast<std::uint32_t>(key >> 32);
    mixed = (mixed ^ (mixed >> 16)) & 0xffffU;
    auto bits = std::bit_cast<std::uint32_t>(from[i]);
    if ((bits & 0x7f800000U) != 0x7f800000U) bits += mixed;
    to[i] = c10::BFloat16(static_cast<std::uint16_t>(bits >> 16), c10::BFloat16::from_bits());
  }
}

}  // namespace

double element(const torch::Tensor& matrix, std::int64_t row, std::int64_t column) {
  const auto at = row * matrix.size(1) + column;
  return matrix.scalar_type() == torch::kFloat64 ? matrix.const_data_ptr<double>()[at]
                                                 : matrix.const_data_ptr<float>()[at];
}

void set_element(const torch::Tensor& matrix, std::int64_t row, std::int64_t column, double value) {
  const auto at = row * matrix.size(1) + column;
  if (matrix.scalar_type() == torch::kFloat64) {
    matrix.data_ptr<double>()[at] = value;
  } else {
    matrix.data_ptr<float>()[at] = static_cast<float>(value);
  }
}

torch::Tensor places_of(std::span<const std::int32_t> rows) {
  return torch::tensor(at::ArrayRef<std::int32_t>(rows.data(), rows.size()), torch::kInt32);
}

torch::Tensor rows_at(const torch::Tensor& matrix, const torch::Tensor& places) {
  auto rows = torch::empty({places.size(0), matrix.size(1)}, matrix.options());
  for_rows(places, [&](std::int64_t i, std::int64_t place) {
    std::memcpy(row_of(rows, i), row_of(matrix, place), row_bytes(matrix));
  });
  return rows;
}

void set_rows_at(const torch::Tensor& matrix, const torch::Tensor& places,
                 const torch::Tensor& rows) {
  for_rows(places, [&](std::int64_t i, std::int64_t place) {
    std::memcpy(row_of(matrix, place), row_of(rows, i), row_bytes(matrix));
  });
}

void round_rows_at(const torch::Tensor& matrix, const torch::Tensor& places,
                   const torch::Tensor& rows, std::int64_t first, std::uint64_t key) {
  const auto in = matrix.size(1);
  for_rows(places, [&](std::int64_t i, std::int64_t place) {
    round_row(reinterpret_cast<const float*>(row_of(rows, i)),
              reinterpret_cast<c10::BFloat16*>(row_of(matrix, place)), in,
              static_cast<std::uint64_t>((first + place) * in), key);
  });
}

}  // namespace tutti
