#pragma once

// Row-sparse gradients between torch's sparse tensors and lists of rows.
//
// Threads: any. Failure: Unsupported and InvalidArgument name the parameter.

#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "sync/plan/row_list.h"

namespace tutti {

/// A gradient as its rows occurred.
class IncomingRows {
 public:
  /// Sparse along its first dimension alone, coalesced or not, or dense: then it has all rows.
  IncomingRows(const torch::Tensor& gradient, const torch::Tensor& parameter,
               const std::string& name);
  /// Hold as long as this does.
  RowEntries entries() const;

 private:
  torch::Tensor rows_;  ///< undefined: all
  torch::Tensor values_;
};

/// A list that comes in parts, as a coalesced sparse tensor.
class OutgoingRows {
 public:
  /// Makes a gradient of the size of `like`, with values of `type` and room for `max_rows` rows.
  OutgoingRows(const torch::Tensor& like, torch::ScalarType type, std::int64_t max_rows);
  /// Greater rows than those before.
  void append(const RowList& list);
  /// The gradient in `type`, rounded where that is narrower.
  torch::Tensor tensor(torch::ScalarType type) const;

 private:
  torch::Tensor like_;
  torch::Tensor rows_;
  torch::Tensor values_;
  std::int64_t count_ = 0;
};

}  // namespace tutti
