#pragma once

// A gradient on its way from autograd into a step: what it has to be, and how it lies.
//
// Threads: any. Failure: Unsupported and InvalidArgument name the parameter.

#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "sync/plan/row_list.h"

namespace tutti {

/// Throws where `gradient` carries a graph, or is sparse and the parameter is not row-sparse.
void require_plain(const torch::Tensor& gradient, const std::string& name, bool row_sparse);

/// True where nothing but `gradient` itself, which may be a view, holds its memory.
bool is_sole_owner(const torch::Tensor& gradient);

/// A gradient in the type of its parameter, as it is folded: elements in the parameter's layout,
/// because they are added to those of the other workers; or rows, as they occurred.
class IncomingGradient {
 public:
  /// Copies elements only if they have another layout. Rows are those of a tensor that is sparse
  /// along its first dimension alone, coalesced or not, or all rows of a dense one. `name` begins
  /// errors.
  IncomingGradient(const torch::Tensor& gradient, const torch::Tensor& parameter,
                   const std::string& name, bool row_sparse);

  bool is_rows() const { return is_rows_; }
  /// Its elements, or those of its rows.
  const torch::Tensor& values() const { return values_; }
  /// Its rows, which hold as long as this does.
  RowEntries rows() const;
  /// True where nothing else holds the memory of the elements.
  bool is_alone() const { return is_alone_; }
  /// Of all its bytes, in order; 0 where it has no row, and nowhere else.
  std::uint64_t hash() const;

 private:
  void take_rows(const torch::Tensor& gradient, const torch::Tensor& parameter,
                 const std::string& name);

  bool is_rows_;
  bool is_alone_;
  torch::Tensor values_;
  torch::Tensor rows_;  ///< undefined: all
};

}  // namespace tutti
