#pragma once

// Row-sparse gradients between torch's sparse tensors and lists of rows.
//
// Threads: any. Failure: Unsupported and BadInput name the parameter.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sync/row_list.h"

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
  /// Values of the parts are of `type`.
  explicit OutgoingRows(torch::ScalarType type) : type_(type) {}
  void append(std::span<const std::uint32_t> rows, const std::byte* values,
              std::size_t bytes_of_row);
  /// Of the size of `like`; of `type`, rounded where that is narrower than the parts'.
  torch::Tensor tensor(const torch::Tensor& like, torch::ScalarType type) const;

 private:
  torch::ScalarType type_;
  std::vector<std::int64_t> rows_;
  std::vector<std::byte> values_;
};

}  // namespace tutti
