#pragma once

// Elements and rows of a piece's matrices.
//
// Threads: those of torch, inside a call. Failure: none; arguments are checked by callers.

#include <torch/torch.h>

#include <cstdint>
#include <span>

namespace tutti {

/// Of a contiguous matrix of float32 or float64.
double element(const torch::Tensor& matrix, std::int64_t row, std::int64_t column);
void set_element(const torch::Tensor& matrix, std::int64_t row, std::int64_t column, double value);

/// Places of rows, as a tensor.
torch::Tensor places_of(std::span<const std::int32_t> rows);
/// The rows at these places. (Torch's index_select and index_copy_ take twice as long.)
torch::Tensor rows_at(const torch::Tensor& matrix, const torch::Tensor& places);
void set_rows_at(const torch::Tensor& matrix, const torch::Tensor& places,
                 const torch::Tensor& rows);
/// The same, of float32 rows into a matrix of bfloat16: up or down, the nearer one more often, by
/// numbers of the key and of the element's place in all rows, of which the matrix has those from
/// `first` on (Gupta et al. 2015, arXiv 1502.02551, stochastic rounding). Values that are not
/// finite stay so.
void round_rows_at(const torch::Tensor& matrix, const torch::Tensor& places,
                   const torch::Tensor& rows, std::int64_t first, std::uint64_t key);

}  // namespace tutti
