#include "sync/rows/row_gradients.h"

#include <algorithm>
#include <cstring>

#include "kernels/norm.h"

namespace tutti {
namespace {

ParameterGroups one_by_one(const std::vector<std::uint32_t>& parameters) {
  ParameterGroups groups;
  for (const auto p : parameters) groups.push_back({p});
  return groups;
}

/// The first entry whose row is at least `row`.
std::size_t first_from(const RowList& list, std::int64_t row) {
  return static_cast<std::size_t>(
      std::partition_point(list.rows.begin(), list.rows.end(),
                           [&](std::uint32_t r) { return static_cast<std::int64_t>(r) < row; }) -
      list.rows.begin());
}

/// Its rows [begin, end).
RowList part_of(const RowList& list, std::int64_t begin, std::int64_t end, std::size_t row_bytes) {
  const auto first = first_from(list, begin);
  return {list.rows.subspan(first, first_from(list, end) - first), list.values + first * row_bytes};
}

}  // namespace

RowGradients::RowGradients(StepExchange& exchange)
    : exchange_(exchange),
      parameters_(row_sparse_parameters(exchange.plan())),
      traffic_(exchange.plan(), one_by_one(parameters_)),
      same_rows_(parameters_.size()) {
  if (parameters_.empty()) return;
  auto longest = kTile;
  for (const auto p : parameters_) {
    longest = std::max(longest, exchange.plan().parameters()[p].row_elements());
  }
  tile_.resize(static_cast<std::size_t>(longest) * sizeof(double));
  touched_ = exchange.group().allocate(parameters_.size() * sizeof(std::int64_t), "row counts");
}

bool RowGradients::any() const {
  return std::ranges::any_of(parameters_, [&](auto p) { return exchange_.slices().touched(p); });
}

std::int64_t RowGradients::max_touched(std::uint32_t parameter) const {
  std::size_t entries = 0;
  for (const auto& source : sources_of(parameter)) entries += source.list.rows.size();
  return std::min(static_cast<std::int64_t>(entries),
                  exchange_.plan().parameters()[parameter].rows());
}

std::vector<RowGradients::Source> RowGradients::sources_of(std::uint32_t parameter) const {
  const auto& entry = exchange_.plan().parameters()[parameter];
  const auto nodes = exchange_.slices().sources_of(parameter);
  std::vector<Source> sources;
  for (std::size_t n = 0; n < nodes.pattern.size(); ++n) {
    if (nodes.pattern[n] == '0') continue;
    auto* const at = const_cast<std::byte*>(nodes.nodes[sources.size()]);
    sources.push_back({n, RowRoom(at, entry).list(), 0});
  }
  return sources;
}

// ---- who owns what ----

/// Where the worker's range begins: as many of all entries lie before it as is its due.
std::int64_t RowGradients::cut(std::span<const Source> sources, std::int64_t rows, int rank) const {
  const int size = exchange_.group().size();
  if (rank == size) return rows;
  const auto before = [&](std::int64_t row) {
    std::size_t entries = 0;
    for (const auto& source : sources) entries += first_from(source.list, row);
    return entries;
  };
  const auto due = before(rows) * static_cast<std::size_t>(rank) / static_cast<std::size_t>(size);
  std::int64_t low = 0;
  std::int64_t high = rows;
  while (low < high) {
    const auto middle = low + (high - low) / 2;
    if (before(middle) < due) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  // Whichever end of its block is nearer to what is due; a block may have most of all entries.
  const auto begin = low / kRowBlock * kRowBlock;
  if (low == begin) return begin;  // where more may lie before it than is due
  const auto end = std::min(begin + kRowBlock, rows);
  return due - before(begin) <= before(end) - due ? begin : end;
}

RowGradients::Range RowGradients::owned(std::uint32_t parameter) {
  const auto sources = sources_of(parameter);
  const auto rows = exchange_.plan().parameters()[parameter].rows();
  const int rank = exchange_.group().rank();
  const int owner = exchange_.owner_of(parameter);
  if (owner >= 0) return {0, owner == rank ? rows : 0};
  return {cut(sources, rows, rank), cut(sources, rows, rank + 1)};
}

// ---- sums ----

std::int64_t RowGradients::fold(std::uint32_t parameter, Range range, double divisor_factor,
                                const Take& take) {
  const auto& entry = exchange_.plan().parameters()[parameter];
  const auto elements = entry.row_elements();
  const auto bytes = row_bytes_of(entry);
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(1, kTile / elements));
  auto sources = sources_of(parameter);
  for (auto& source : sources) {
    source.list = part_of(source.list, range.begin, range.end, bytes);
  }
  auto part = exchange_.slices().sources_of(parameter);
  part.divisor *= divisor_factor;
  std::int64_t rows = 0;
  tile_rows_.clear();
  const auto hand_over = [&] {
    if (tile_rows_.empty()) return;
    take({tile_rows_, tile_.data()});
    rows += static_cast<std::int64_t>(tile_rows_.size());
    tile_rows_.clear();
  };
  std::vector<Source*> present;
  while (true) {
    // The least row of all, who has it, and the least of the others.
    auto row = range.end;
    auto other = range.end;
    present.clear();
    for (auto& source : sources) {
      if (source.next == source.list.rows.size()) continue;
      const auto next = static_cast<std::int64_t>(source.list.rows[source.next]);
      if (next < row) {
        other = row;
        row = next;
        present.assign(1, &source);
      } else if (next == row) {
        present.push_back(&source);
      } else {
        other = std::min(other, next);
      }
    }
    if (present.empty()) break;
    // Neighbouring entries that the same nodes have are one fold.
    const auto& first = *present.front();
    std::size_t run = 1;
    const auto goes_on = [&] {
      if (tile_rows_.size() + run == room || first.next + run == first.list.rows.size()) {
        return false;
      }
      const auto next = first.list.rows[first.next + run];
      return static_cast<std::int64_t>(next) < other &&
             std::ranges::all_of(present, [&](const Source* source) {
               return source->next + run < source->list.rows.size() &&
                      source->list.rows[source->next + run] == next;
             });
    };
    while (goes_on()) ++run;
    std::fill(part.pattern.begin(), part.pattern.end(), '0');
    part.nodes.clear();
    for (auto* source : present) {
      part.pattern[source->node] = '1';
      part.nodes.push_back(source->list.values + source->next * bytes);
    }
    void* const to = tile_.data() + tile_rows_.size() * bytes;
    exchange_.slices().fold(part, 0, static_cast<std::int64_t>(run) * elements, entry.node_type,
                            {&to, 1});
    const auto from = first.list.rows.begin() + static_cast<std::ptrdiff_t>(first.next);
    tile_rows_.insert(tile_rows_.end(), from, from + static_cast<std::ptrdiff_t>(run));
    for (auto* source : present) source->next += run;
    if (tile_rows_.size() == room) hand_over();
  }
  hand_over();
  return rows;
}

void RowGradients::fold_own(double divisor_factor) {
  for (const auto p : parameters_) {
    if (!exchange_.slices().touched(p)) {
      own_touched(p, 0);
      continue;
    }
    const auto range = owned(p);
    std::size_t most = 0;
    for (const auto& source : sources_of(p)) {
      most += part_of(source.list, range.begin, range.end, 0).rows.size();
    }
    auto sum = exchange_.sum_room(p, most);
    sum.clear();
    const auto rows =
        fold(p, range, divisor_factor, [&](const RowList& part) { sum.append(part); });
    own_touched(p, rows);
  }
}

RowList RowGradients::folded(int rank, std::uint32_t parameter) const {
  return RowRoom(exchange_.sum_place(rank, parameter), exchange_.plan().parameters()[parameter])
      .list();
}

void RowGradients::squares(std::uint32_t parameter, std::span<double> blocks) {
  const auto range = owned(parameter);
  if (range.begin == range.end) return;  // it may begin inside the last block
  const auto begin = range.begin / kRowBlock;
  const auto end = (range.end + kRowBlock - 1) / kRowBlock;
  std::fill(blocks.begin() + begin, blocks.begin() + end, 0.0);
  add_squares(exchange_.plan().parameters()[parameter], folded(exchange_.group().rank(), parameter),
              blocks);
}

void add_squares(const PlanEntry& entry, const RowList& list, std::span<double> blocks) {
  const auto elements = entry.row_elements();
  std::vector<double> of_row(static_cast<std::size_t>((elements + kNormBlock - 1) / kNormBlock));
  for (std::size_t k = 0; k < list.rows.size(); ++k) {
    squares_of_blocks(list.values + k * row_bytes_of(entry), entry.node_type, elements, of_row);
    blocks[list.rows[k] / static_cast<std::uint32_t>(kRowBlock)] += tree_sum(of_row);
  }
}

}  // namespace tutti
