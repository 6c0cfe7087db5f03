#include "sync/plan/row_list.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/fold.h"
#include "memory/arena.h"

namespace tutti {
namespace {

constexpr std::size_t kLine = 64;

/// Row above, position among the entries below: sorted, those of one row stand together, in the
/// order of their occurrence.
std::vector<std::uint64_t> sorted_keys(const RowEntries& entries) {
  std::vector<std::uint64_t> keys(static_cast<std::size_t>(entries.count));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<std::uint64_t>(entries.rows[i]) << 32 | i;
  }
  if (!std::is_sorted(keys.begin(), keys.end())) std::sort(keys.begin(), keys.end());
  return keys;
}

std::uint32_t row_of(std::uint64_t key) { return static_cast<std::uint32_t>(key >> 32); }
std::uint32_t position_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }

}  // namespace

std::size_t row_bytes_of(const PlanEntry& entry) {
  return static_cast<std::size_t>(entry.row_elements()) * size_of(entry.node_type);
}

// A line with the number of rows, the rows, the values.

std::size_t RowRoom::bytes(const PlanEntry& entry) {
  return used_bytes(entry, static_cast<std::size_t>(entry.rows()));
}

std::size_t RowRoom::used_bytes(const PlanEntry& entry, std::size_t rows) {
  return kLine + round_up(rows * sizeof(std::uint32_t), kLine) + rows * row_bytes_of(entry);
}

std::uint32_t* RowRoom::rows() const { return reinterpret_cast<std::uint32_t*>(at_ + kLine); }

std::byte* RowRoom::values() const {
  const auto all = static_cast<std::size_t>(entry_->rows()) * sizeof(std::uint32_t);
  return at_ + kLine + round_up(all, kLine);
}

void RowRoom::gather(const RowEntries& entries, double weight, double* largest) {
  const auto elements = entry_->row_elements();
  const auto own = entry_->spec.dtype;
  const auto type = entry_->node_type;
  const auto from = [&](std::size_t position) {
    return static_cast<const std::byte*>(entries.values) +
           position * static_cast<std::size_t>(elements) * size_of(own);
  };
  std::size_t held = 0;
  if (entries.rows == nullptr) {
    held = static_cast<std::size_t>(entries.count);
    std::iota(rows(), rows() + held, 0U);
    scale_into(values(), type, entries.values, own, entries.count * elements, 1);
  } else {
    const auto keys = sorted_keys(entries);
    for (std::size_t k = 0; k < keys.size();) {
      const auto row = row_of(keys[k]);
      const auto first = position_of(keys[k]);
      auto* const to = values() + held * row_bytes_of(*entry_);
      scale_into(to, type, from(first), own, elements, 1);
      for (++k; k < keys.size() && row_of(keys[k]) == row; ++k) {
        add_scaled(to, type, from(position_of(keys[k])), own, elements, 1);
      }
      rows()[held++] = row;
    }
  }
  *count() = held;
  const auto all = static_cast<std::int64_t>(held) * elements;
  if (weight != 1 || largest != nullptr) {
    scale_into(values(), type, values(), type, all, weight, largest);
  }
}

void RowRoom::add(const RowList& a, const RowList& b) {
  const auto bytes = row_bytes_of(*entry_);
  std::size_t i = 0;
  std::size_t j = 0;
  std::size_t held = 0;
  const auto copy = [&](const RowList& list, std::size_t& at, std::size_t end) {
    std::copy(list.rows.begin() + static_cast<std::ptrdiff_t>(at),
              list.rows.begin() + static_cast<std::ptrdiff_t>(end), rows() + held);
    std::memcpy(values() + held * bytes, list.values + at * bytes, (end - at) * bytes);
    held += end - at;
    at = end;
  };
  const auto run = [](const RowList& list, std::size_t at, std::uint32_t before) {
    while (at < list.rows.size() && list.rows[at] < before) ++at;
    return at;
  };
  while (i < a.rows.size() && j < b.rows.size()) {
    copy(a, i, run(a, i, b.rows[j]));
    if (i == a.rows.size()) break;
    copy(b, j, run(b, j, a.rows[i]));
    if (j == b.rows.size() || a.rows[i] != b.rows[j]) continue;
    auto* const to = values() + held * bytes;
    copy(a, i, i + 1);
    add_scaled(to, entry_->node_type, b.values + j * bytes, entry_->node_type,
               entry_->row_elements(), 1);
    ++j;
  }
  copy(a, i, a.rows.size());
  copy(b, j, b.rows.size());
  *count() = held;
}

void RowRoom::append(const RowList& more) {
  const auto held = static_cast<std::size_t>(*count());
  std::copy(more.rows.begin(), more.rows.end(), rows() + held);
  std::memcpy(values() + held * row_bytes_of(*entry_), more.values,
              more.rows.size() * row_bytes_of(*entry_));
  *count() = held + more.rows.size();
}

}  // namespace tutti
