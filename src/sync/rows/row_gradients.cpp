#include "sync/rows/row_gradients.h"

#include <algorithm>
#include <cstring>

#include "kernels/fold_schedule.h"
#include "kernels/norm.h"

namespace tutti {
namespace {

Buckets one_by_one(const std::vector<std::uint32_t>& parameters) {
  Buckets buckets;
  for (const auto p : parameters) buckets.push_back({p});
  return buckets;
}

/// The first entry whose row is at least `row`.
std::size_t first_from(const RowList& list, std::int64_t row) {
  return static_cast<std::size_t>(
      std::partition_point(list.rows.begin(), list.rows.end(),
                           [&](std::uint32_t r) { return static_cast<std::int64_t>(r) < row; }) -
      list.rows.begin());
}

/// The list's part with rows in [begin, end).
RowList part_of(const RowList& list, std::int64_t begin, std::int64_t end, std::size_t row_bytes) {
  const auto first = first_from(list, begin);
  return {list.rows.subspan(first, first_from(list, end) - first), list.values + first * row_bytes};
}

RowGradients::Range rows_of(const ElementRange& range, const PlanEntry& entry) {
  return {range.begin / entry.row_elements(), range.end / entry.row_elements()};
}

}  // namespace

RowGradients::RowGradients(StepExchange& exchange)
    : exchange_(exchange),
      nodes_(exchange.nodes()),
      slices_(nodes_),
      parameters_(row_sparse_parameters(exchange.plan())),
      traffic_(exchange.plan(), one_by_one(parameters_)),
      same_rows_(parameters_.size()) {
  if (parameters_.empty()) return;
  auto longest = kTile;
  for (const auto p : parameters_) {
    longest = std::max(longest, exchange.plan().parameters()[p].row_elements());
  }
  tile_.resize(static_cast<std::size_t>(longest) * sizeof(double));
  touched_ = exchange.memory().add<Section<std::int64_t>>(parameters_.size());
}

void RowGradients::begin(double loss_scale) {
  loss_scale_ = loss_scale;
  kept_ = false;
  for (const auto p : parameters_) own_touched(p, 0);
}

bool RowGradients::must_be_kept(bool may_overflow) const {
  return !parameters_.empty() && (may_overflow || nodes_.held().size() > kMaxSources);
}

bool RowGradients::any() const {
  return std::ranges::any_of(parameters_, [&](auto p) { return touched(p); });
}

std::int64_t RowGradients::max_touched(std::uint32_t parameter) const {
  std::size_t entries = 0;
  for (const auto& source : sources_of(parameter)) entries += source.list.rows.size();
  return std::min(static_cast<std::int64_t>(entries), entry_of(parameter).rows());
}

std::vector<RowGradients::Source> RowGradients::sources_of(std::uint32_t parameter) const {
  const auto& entry = entry_of(parameter);
  const auto nodes = nodes_.sources_of(parameter);
  std::vector<Source> sources;
  for (std::size_t n = 0; n < nodes.pattern.size(); ++n) {
    if (nodes.pattern[n] == '0') continue;
    auto* const at = const_cast<std::byte*>(nodes.nodes[sources.size()]);
    sources.push_back({n, RowRoom(at, entry).list(), 0});
  }
  return sources;
}

// ---- who owns what ----

/// The row at which the worker's range begins: ranges have about as many entries each.
std::int64_t RowGradients::cut(std::span<const Source> sources, std::int64_t rows, int rank) const {
  const int size = nodes_.team().size();
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

std::vector<ElementRange> RowGradients::shares(std::span<const std::uint32_t> parameters,
                                               int rank) const {
  std::vector<ElementRange> ranges;
  for (const auto p : parameters) {
    if (!touched(p)) continue;
    const auto sources = sources_of(p);
    const auto elements = entry_of(p).row_elements();
    const auto rows = entry_of(p).rows();
    const auto begin = cut(sources, rows, rank);
    const auto end = cut(sources, rows, rank + 1);
    if (begin < end) ranges.push_back({p, begin * elements, end * elements});
  }
  return ranges;
}

// ---- sums ----

void RowGradients::fold(const ElementRange& range, const Take& take) {
  const auto p = range.parameter;
  own_touched(p, merge(p, rows_of(range, entry_of(p)),
                       [&](const RowList& list) { take_pieces(p, list, take); }));
}

void RowGradients::read(const ElementRange& range, const Take& take) {
  const auto p = range.parameter;
  merge(p, rows_of(range, entry_of(p)), [&](const RowList& list) { take_pieces(p, list, take); });
}

/// Neighbouring rows lie together in the parameter, in its state, and in the list.
void RowGradients::take_pieces(std::uint32_t parameter, const RowList& list,
                               const Take& take) const {
  const auto& rows = list.rows;
  const auto elements = entry_of(parameter).row_elements();
  const auto bytes = row_bytes_of(entry_of(parameter));
  for (std::size_t k = 0; k < rows.size();) {
    std::size_t run = 1;
    while (k + run < rows.size() && rows[k + run] == rows[k] + run) ++run;
    const auto begin = static_cast<std::int64_t>(rows[k]) * elements;
    take({parameter, begin, begin + static_cast<std::int64_t>(run) * elements},
         list.values + k * bytes);
    k += run;
  }
}

std::int64_t RowGradients::merge(std::uint32_t parameter, Range range, const TakeRows& take) {
  const auto& entry = entry_of(parameter);
  const auto elements = entry.row_elements();
  const auto bytes = row_bytes_of(entry);
  const auto room = static_cast<std::size_t>(std::max<std::int64_t>(1, kTile / elements));
  auto sources = sources_of(parameter);
  for (auto& source : sources) {
    source.list = part_of(source.list, range.begin, range.end, bytes);
  }
  auto part = nodes_.sources_of(parameter);
  part.divisor *= loss_scale_;
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
    slices_.fold(part, 0, static_cast<std::int64_t>(run) * elements, entry.node_type, {&to, 1});
    const auto from = first.list.rows.begin() + static_cast<std::ptrdiff_t>(first.next);
    tile_rows_.insert(tile_rows_.end(), from, from + static_cast<std::ptrdiff_t>(run));
    for (auto* source : present) source->next += run;
    if (tile_rows_.size() == room) hand_over();
  }
  hand_over();
  return rows;
}

std::size_t RowGradients::norm_blocks(std::uint32_t parameter) const {
  return static_cast<std::size_t>((entry_of(parameter).rows() + kRowBlock - 1) / kRowBlock);
}

/// A worker that owns no row of a touched parameter keeps an empty list.
void RowGradients::keep(std::span<const ElementRange> owned, const Squares& squares) {
  kept_ = true;
  for (const auto p : parameters_) {
    if (!touched(p)) continue;
    const auto found = std::ranges::find(owned, p, &ElementRange::parameter);
    const auto range = found == owned.end() ? Range() : rows_of(*found, entry_of(p));
    std::size_t most = 0;
    for (const auto& source : sources_of(p)) {
      most += part_of(source.list, range.begin, range.end, 0).rows.size();
    }
    auto sum = nodes_.sum_room(p, most);
    sum.clear();
    own_touched(p, merge(p, range, [&](const RowList& part) { sum.append(part); }));
    if (!squares || range.begin == range.end) continue;  // it may begin inside the last block
    const auto blocks = squares(p);
    std::fill(blocks.begin() + range.begin / kRowBlock,
              blocks.begin() + (range.end + kRowBlock - 1) / kRowBlock, 0.0);
    add_squares(entry_of(p), kept(nodes_.team().rank, p), blocks);
  }
}

RowList RowGradients::kept(int rank, std::uint32_t parameter) const {
  return RowRoom(nodes_.sum_place(nodes_.team().member(rank), parameter), entry_of(parameter))
      .list();
}

void RowGradients::kept(int rank, const ElementRange& range, const Take& take) const {
  const auto p = range.parameter;
  const auto rows = rows_of(range, entry_of(p));
  take_pieces(p, part_of(kept(rank, p), rows.begin, rows.end, row_bytes_of(entry_of(p))), take);
}

void RowGradients::read_rows(std::uint32_t parameter, const TakeRows& take) {
  if (!kept_) {
    merge(parameter, {0, entry_of(parameter).rows()}, take);
    return;
  }
  for (int r = 0; r < nodes_.team().size(); ++r) take(kept(r, parameter));
}

double RowGradients::squares_of(std::uint32_t parameter) {
  std::vector<double> blocks(norm_blocks(parameter));
  read_rows(parameter,
            [&](const RowList& list) { add_squares(entry_of(parameter), list, blocks); });
  return tree_sum(blocks);
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
