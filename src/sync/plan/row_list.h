#pragma once

// A gradient of which most rows are absent, as a list: the rows that are there, ascending, and
// their values. Lists are added row by row; a row that one of them lacks is the other one's, bit
// for bit.
//
// Threads: pure functions on disjoint memory. Failure: none; arguments are checked by callers.

#include <cstddef>
#include <cstdint>
#include <span>

#include "sync/plan/plan_entry.h"

namespace tutti {

/// Rows are counted in 32 bits.
inline constexpr std::int64_t kMaxRows = std::int64_t{1} << 32;

struct RowList {
  std::span<const std::uint32_t> rows;  ///< ascending
  const std::byte* values = nullptr;    ///< one row after the other
};

/// The rows that a backward gives, in the order in which they occurred, some more than once.
struct RowEntries {
  const std::int64_t* rows = nullptr;  ///< null: 0, 1, 2 …
  const void* values = nullptr;        ///< one row after the other, of the parameter's own type
  std::int64_t count = 0;
};

/// Bytes of one row in the parameter's node type.
std::size_t row_bytes_of(const PlanEntry& entry);

/// Memory for a list of one parameter: room for all of its rows, with values of its node type.
/// Zero-filled memory is an empty list.
class RowRoom {
 public:
  RowRoom(std::byte* at, const PlanEntry& entry) : at_(at), entry_(&entry) {}
  /// Bytes of the room for all rows.
  static std::size_t bytes(const PlanEntry& entry);
  /// Bytes of the room that a list of `rows` rows touches.
  static std::size_t used_bytes(const PlanEntry& entry, std::size_t rows);

  RowList list() const { return {{rows(), static_cast<std::size_t>(*count())}, values()}; }
  void clear() { *count() = 0; }
  /// The entries become the list: those of one row are added in the order of their occurrence, and
  /// their sum is multiplied by `weight`. `largest`, where given, becomes the largest_magnitude of
  /// the list's values.
  void gather(const RowEntries& entries, double weight, double* largest);
  /// a + b becomes the list. Neither lies here.
  void add(const RowList& a, const RowList& b);
  /// Appends rows that are greater than all present ones.
  void append(const RowList& more);

 private:
  std::uint64_t* count() const { return reinterpret_cast<std::uint64_t*>(at_); }
  std::uint32_t* rows() const;
  std::byte* values() const;

  std::byte* at_;
  const PlanEntry* entry_;
};

}  // namespace tutti
