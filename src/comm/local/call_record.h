#pragma once

// What one member asks for in one collective, as the others see it in shared memory: compared by
// hash on every arrival, read only for error texts.
//
// Threads: plain data, published by the arrival's release store.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/local/operation.h"

namespace tutti {

inline constexpr std::size_t kLabelBytes = 63;

struct CallRecord {
  OperationKind kind;
  Reduction reduction;
  DType dtype;
  std::uint8_t label_bytes;
  std::int32_t root;
  std::int64_t count;                  ///< elements this call is about
  std::uint64_t counts_hash;           ///< 0 unless the members' counts differ
  std::array<std::int64_t, 8> counts;  ///< the first of them
  std::uint32_t layout_count;          ///< sizes and strides; 0 where there are none
  std::array<std::int64_t, 8> layout;  ///< the first of them
  std::array<char, kLabelBytes + 1> label;

  std::string_view label_text() const { return {label.data(), label_bytes}; }
};

/// Writes the record, and returns the hash of what members must agree on.
std::uint64_t write_record(CallRecord& record, const Operation& operation);

/// `all-reduce sum float32[100] "encoder.weight"`.
std::string describe(const CallRecord& record, int group_size);

}  // namespace tutti
