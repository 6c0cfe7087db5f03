#pragma once

// Reduced row-sparse gradients: lists of rows as torch's sparse tensors.
//
// Threads: any.

#include <torch/torch.h>

#include <cstdint>

#include "sync/plan/row_list.h"

namespace tutti {

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
