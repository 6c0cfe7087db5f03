#pragma once

// The row-sparse gradients of a step: the sum of the lists in all workers' nodes. The rows of a
// parameter are split over the workers in ranges with about as many entries each; the owner of a
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

#include "sync/nodes/slice_fold.h"
#include "sync/plan/row_list.h"
#include "sync/step/gradient_source.h"
#include "sync/step/step_exchange.h"
#include "sync/step/traffic_count.h"

namespace tutti {

/// Rows of a block whose squares are added up by one worker: ranges begin at multiples of it.
inline constexpr std::int64_t kRowBlock = 64;
/// Adds Σ x² of the list's rows to the blocks that they lie in, in float64: of each row as
/// squares_of_blocks and tree_sum say, then row after row.
void add_squares(const PlanEntry& entry, const RowList& list, std::span<double> blocks);

class RowGradients final : public GradientSource {
 public:
  /// Keeps a reference. Collective.
  explicit RowGradients(StepExchange& exchange);

  std::span<const std::uint32_t> parameters() const override { return parameters_; }
  bool touched(std::uint32_t parameter) const override { return nodes_.touched(parameter); }
  void begin(double loss_scale) override;
  bool must_be_kept(bool may_overflow) const override;
  /// Each worker's is one range of rows per parameter, with about as many entries as another's.
  std::vector<ElementRange> shares(std::span<const std::uint32_t> parameters,
                                   int rank) const override;
  /// A piece is some neighbouring rows that are touched.
  void fold(const ElementRange& range, const Take& take) override;
  void read(const ElementRange& range, const Take& take) override;
  std::size_t norm_blocks(std::uint32_t parameter) const override;
  void keep(std::span<const ElementRange> owned, const Squares& squares) override;
  void kept(int rank, const ElementRange& range, const Take& take) const override;
  void note() override;
  void commit(StepReport& report) override;
  /// A bucket per parameter.
  TrafficReport traffic() const override { return traffic_.report(); }

  /// Whether some of them were touched in the step.
  bool any() const;
  /// An upper bound of the touched rows of a parameter.
  std::int64_t max_touched(std::uint32_t parameter) const;
  /// Rows [begin, end) of a parameter.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// Touched rows, ascending, and their values, of the node type; at most a few KiB at a time.
  using TakeRows = std::function<void(const RowList& rows)>;
  /// Calls take() for the rows of a touched parameter in the range; returns how many there are.
  std::int64_t merge(std::uint32_t parameter, Range range, const TakeRows& take);
  /// The rows of a touched parameter that the worker owns, once it has called keep().
  RowList kept(int rank, std::uint32_t parameter) const;
  /// Hands all rows of a touched parameter to `take`, whether they are kept or not.
  void read_rows(std::uint32_t parameter, const TakeRows& take);
  /// Σ x² of a parameter's gradient, as its norm takes it.
  double squares_of(std::uint32_t parameter);

 private:
  /// One node's list of a parameter.
  struct Source {
    std::size_t node = 0;  ///< among those of the step
    RowList list;
    std::size_t next = 0;  ///< entry
  };
  std::vector<Source> sources_of(std::uint32_t parameter) const;
  const PlanEntry& entry_of(std::uint32_t parameter) const {
    return exchange_.plan().parameters()[parameter];
  }
  void take_pieces(std::uint32_t parameter, const RowList& list, const Take& take) const;
  std::int64_t cut(std::span<const Source> sources, std::int64_t rows, int rank) const;
  /// Notes how many rows of this worker's range are touched.
  void own_touched(std::uint32_t parameter, std::int64_t rows);
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
  NodeStore& nodes_;
  SliceFold slices_;
  std::vector<std::uint32_t> parameters_;
  double loss_scale_ = 1;
  bool kept_ = false;
  /// Per worker and parameter: rows of its range.
  std::optional<WorkerParts<Section<std::int64_t>>> touched_;
  std::vector<std::byte> tile_;
  std::vector<std::uint32_t> tile_rows_;
  TrafficCount traffic_;
  std::vector<bool> same_rows_;  ///< in this step: as an earlier parameter has them
  std::size_t max_bytes_ = 0;    ///< in this step: what the worker sent that sent most
};

}  // namespace tutti
