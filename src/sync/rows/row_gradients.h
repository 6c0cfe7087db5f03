#pragma once

// The row-sparse gradients of a step: what the lists in all workers' nodes say together. The rows
// of a parameter are dealt to the workers in ranges with about as many entries each; whoever owns a
// range merges that part of all lists, so that the work is split as it is for dense gradients. A
// row is the sum along the tree of the nodes that have it, divided once: the bytes of a dense
// gradient's row.
//
// Threads: one. Between arrive() and the end of complete(), unless said otherwise.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "sync/plan/row_list.h"
#include "sync/step/step_exchange.h"
#include "sync/step/traffic_count.h"

namespace tutti {

/// Rows of a block whose squares are added up by one worker: ranges begin at multiples of it.
inline constexpr std::int64_t kRowBlock = 64;
/// Adds Σ x² of the list's rows to the blocks that they lie in, in float64: of each row as
/// squares_of_blocks and tree_sum say, then row after row.
void add_squares(const PlanEntry& entry, const RowList& list, std::span<double> blocks);

class RowGradients {
 public:
  /// Keeps a reference. Collective.
  explicit RowGradients(StepExchange& exchange);

  /// Those that are row-sparse, in registration order.
  std::span<const std::uint32_t> parameters() const { return parameters_; }
  /// Some of them were touched in the step at hand.
  bool any() const;
  /// Of a touched one: not more rows were.
  std::int64_t max_touched(std::uint32_t parameter) const;

  /// Rows [begin, end) of a parameter.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// This worker's, of a touched parameter.
  Range owned(std::uint32_t parameter);
  /// Touched rows, ascending, and their values, of the node type; at most a few KiB at a time.
  using Take = std::function<void(const RowList& rows)>;
  /// Calls take() for the rows of a touched parameter in the range; returns how many there are. The
  /// sums are divided by `divisor_factor` besides.
  std::int64_t fold(std::uint32_t parameter, Range range, double divisor_factor, const Take& take);

  /// This worker's rows of all touched parameters to its own arena: then folded() has them.
  void fold_own(double divisor_factor);
  /// What that worker owns, once it has called fold_own().
  RowList folded(int rank, std::uint32_t parameter) const;
  /// Σ x² of the blocks of rows in this worker's range. After fold_own().
  void squares(std::uint32_t parameter, std::span<double> blocks);

  /// Whoever owns a range, and folds it without fold_own(), says how many rows of it are touched:
  /// inside complete().
  void own_touched(std::uint32_t parameter, std::int64_t rows);
  /// Inside complete(), where the step counts: what was sent.
  void note();
  /// Once the step is complete, and counts.
  void count();
  /// Of the steps that counted: a group per parameter.
  const TrafficReport& traffic() const { return traffic_.report(); }
  /// Of the step that was noted: what the worker sent that sent most.
  std::size_t max_bytes() const { return max_bytes_; }

 private:
  /// One node's list of a parameter.
  struct Source {
    std::size_t node = 0;  ///< among those of the step
    RowList list;
    std::size_t next = 0;  ///< entry
  };
  std::vector<Source> sources_of(std::uint32_t parameter) const;
  std::int64_t cut(std::span<const Source> sources, std::int64_t rows, int rank) const;
  std::int64_t* touched_of(int rank) const;
  struct Cost {
    std::uint64_t bytes;
    bool is_array;
  };
  Cost cost_of(std::uint32_t parameter, std::int64_t rows, bool same_rows) const;
  /// One worker's message.
  struct Sent {
    int worker = 0;
    std::vector<std::uint32_t> rows;
    friend bool operator==(const Sent&, const Sent&) = default;
  };
  std::vector<Sent> sent_of(std::uint32_t parameter) const;

  StepExchange& exchange_;
  std::vector<std::uint32_t> parameters_;
  std::optional<SharedMemory> touched_;  ///< per worker and parameter: rows of its range
  std::vector<std::byte> tile_;
  std::vector<std::uint32_t> tile_rows_;
  TrafficCount traffic_;
  std::vector<bool> same_rows_;  ///< of the step at hand: as an earlier parameter has them
  std::size_t max_bytes_ = 0;
};

}  // namespace tutti
