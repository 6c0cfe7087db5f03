#pragma once

// The gradients of a step that are sent as they are: arrays that are folded from all workers'
// nodes. With a codec, these are the ones that a single worker updates.
//
// Threads: one.

#include "sync/nodes/slice_fold.h"
#include "sync/step/array_source.h"
#include "sync/step/step_exchange.h"
#include "sync/step/traffic_count.h"

namespace tutti {

class DenseGradients final : public ArraySource {
 public:
  /// Keeps a reference.
  explicit DenseGradients(StepExchange& exchange);

  void begin(double loss_scale) override { loss_scale_ = loss_scale; }
  bool must_be_kept(bool may_overflow) const override;
  std::optional<Fold> fused(const ElementRange& range) override;
  void note() override { traffic_.note(nodes()); }
  void commit(StepReport& report) override;
  TrafficReport traffic() const override { return traffic_.report(); }

 private:
  void fold_to(const ElementRange& range, void* to, bool counts) override;
  NodeSources sources_of(std::uint32_t parameter) const;

  SliceFold slices_;
  PlainTraffic traffic_;
  double loss_scale_ = 1;
};

}  // namespace tutti
