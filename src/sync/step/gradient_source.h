#pragma once

// The source of some parameters' gradients in a step: the nodes of all workers (DenseGradients),
// messages (CodedGradients), or lists of rows (RowGradients). Code that updates parameters, or puts
// gradients in place, asks the sources and does not distinguish kinds.
//
//   arrive │ begin → prepare │ keep, and a barrier: where sums have to be known before they are
//   used
//          │ complete: fold, or fused, the elements that this worker owns; note │ commit
//
// Threads: one. A source is read between arrive() and the end of complete(), but for its traffic.
// Failure: that of the step protocol; a refusal is a text, the same on all workers.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/fold.h"
#include "sync/plan/tile_share.h"
#include "tutti/step_report.h"
#include "tutti/traffic.h"

namespace tutti {

class GradientSource {
 public:
  virtual ~GradientSource() = default;

  /// The parameters whose gradients this source gives, in registration order.
  virtual std::span<const std::uint32_t> parameters() const = 0;
  /// Whether some worker has a gradient of it.
  virtual bool touched(std::uint32_t parameter) const = 0;

  /// Notes that this worker's open leaf has written the gradient of an array for the last time.
  virtual void wrote(std::uint32_t /*parameter*/, double /*loss_scale*/) {}
  /// Begins a published step, whose gradients are `loss_scale` times too large.
  virtual void begin(double loss_scale) = 0;
  /// The reason why a step has to be dropped.
  struct Refusal {
    std::string text = {};     ///< "": it need not be
    bool is_overflow = false;  ///< a sum of its gradients is not finite
  };
  /// Does what has to precede all folds, on all workers.
  virtual Refusal prepare() { return {}; }
  /// Whether sums have to be kept, and judged, before anything is updated; `may_overflow`: a sum of
  /// the step's gradients need not be finite.
  virtual bool must_be_kept(bool may_overflow) const = 0;

  /// The ranges that worker `rank` folds of the touched ones among `parameters`, where work is
  /// shared.
  virtual std::vector<ElementRange> shares(std::span<const std::uint32_t> parameters,
                                           int rank) const = 0;

  /// Elements that follow one another in a parameter, and their sum, of the node type.
  using Take = std::function<void(const ElementRange& piece, const std::byte* values)>;
  /// Hands the touched elements of a range that this worker owns to `take`, ascending, of an array
  /// tile by tile. They count as what its owner found in this step.
  virtual void fold(const ElementRange& range, const Take& take) = 0;
  /// The same as a fold without destinations, for one sweep that folds and updates; its spans hold
  /// until the next call. Nothing where there is no such sweep.
  virtual std::optional<Fold> fused(const ElementRange& /*range*/) { return {}; }
  /// Does the same as fold() for any range, on any worker alone, and counts nothing.
  virtual void read(const ElementRange& range, const Take& take) = 0;

  /// Blocks of a parameter whose squares are added up apart. Ranges of shares() begin at blocks.
  virtual std::size_t norm_blocks(std::uint32_t parameter) const = 0;
  /// Σ x² of a parameter's blocks, for all workers.
  using Squares = std::function<std::span<double>(std::uint32_t parameter)>;
  /// Folds all ranges that this worker owns into its arena, and the squares of their blocks to
  /// `squares` if there is one. After a barrier kept() has them; fold(), fused() and read() have
  /// lost what they read.
  virtual void keep(std::span<const ElementRange> owned, const Squares& squares) = 0;
  /// Does the same as fold() for a range that worker `rank` has kept.
  virtual void kept(int rank, const ElementRange& range, const Take& take) const = 0;

  /// Notes what was sent, inside complete(), where the step counts.
  virtual void note() = 0;
  /// Commits a step that is complete and counts, and adds what its report lacks.
  virtual void commit(StepReport& report) = 0;
  /// The traffic of the steps that counted.
  virtual TrafficReport traffic() const = 0;
};

/// Merges the traffic of a step's sources, of which there is at least one: buckets of the first
/// source come first, and the counts of steps and collectives are the first source's.
TrafficReport traffic_of(std::span<GradientSource* const> sources);

}  // namespace tutti
