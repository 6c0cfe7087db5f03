#include "sync/step/dense_gradients.h"

#include <algorithm>
#include <utility>

#include "kernels/fold_schedule.h"
#include "sync/plan/fusion.h"

namespace tutti {
namespace {

/// Parameters that have an owner are one more bucket.
Buckets buckets_as_they_are(const StepExchange& exchange) {
  const auto& options = exchange.options();
  Buckets buckets;
  if (!options.coded) buckets = buckets_in_registration_order(exchange.plan(), options.fusion);
  auto placed = placed_parameters(exchange.plan());
  if (!placed.empty()) buckets.push_back(std::move(placed));
  return buckets;
}

std::vector<std::uint32_t> parameters_as_they_are(const StepExchange& exchange) {
  std::vector<std::uint32_t> parameters;
  for (const auto& bucket : buckets_as_they_are(exchange)) {
    parameters.insert(parameters.end(), bucket.begin(), bucket.end());
  }
  std::ranges::sort(parameters);
  return parameters;
}

}  // namespace

DenseGradients::DenseGradients(StepExchange& exchange)
    : ArraySource(exchange.nodes(), parameters_as_they_are(exchange)),
      slices_(exchange.nodes()),
      traffic_(exchange.plan(), buckets_as_they_are(exchange), exchange.group().size()) {}

bool DenseGradients::must_be_kept(bool may_overflow) const {
  return !parameters().empty() && (may_overflow || nodes().held().size() > kMaxSources);
}

NodeSources DenseGradients::sources_of(std::uint32_t parameter) const {
  auto sources = nodes().sources_of(parameter);
  sources.divisor *= loss_scale_;
  return sources;
}

std::optional<Fold> DenseGradients::fused(const ElementRange& range) {
  return slices_.fold_of(sources_of(range.parameter), range.begin, range.end);
}

void DenseGradients::fold_to(const ElementRange& range, void* to, bool) {
  slices_.fold(sources_of(range.parameter), range.begin, range.end,
               entry_of(range.parameter).node_type, {&to, 1});
}

void DenseGradients::commit(StepReport&) { traffic_.count(); }

}  // namespace tutti
