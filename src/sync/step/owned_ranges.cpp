#include "sync/step/owned_ranges.h"

#include "kernels/fold.h"

namespace tutti {

OwnedRanges::OwnedRanges(const StepExchange& exchange, const GradientSource& source,
                         const std::function<bool(std::uint32_t)>& stays)
    : exchange_(exchange), source_(source) {
  for (const auto p : source.parameters()) {
    (exchange.owner_of(p) >= 0 ? placed_ : stays && stays(p) ? staying_ : shared_).push_back(p);
  }
}

std::vector<ElementRange> OwnedRanges::of(int rank) const {
  const auto& plan = exchange_.plan();
  const auto& team = exchange_.nodes().team();
  auto ranges = source_.shares(shared_, rank);
  for (const auto& range : tile_share(plan, staying_, rank, team.size())) {
    if (source_.touched(range.parameter)) ranges.push_back(range);
  }
  for (const auto p : placed_) {
    if (team.deputy_of(exchange_.owner_of(p)) != rank || !source_.touched(p)) continue;
    ranges.push_back({p, 0, plan.parameters()[p].spec.count});
  }
  return ranges;
}

void fold_for_all(GradientSource& source, const NodeStore& nodes,
                  const std::vector<ElementRange>& owned) {
  for (const auto& range : owned) {
    const auto& entry = nodes.plan().parameters()[range.parameter];
    source.fold(range, [&](const ElementRange& piece, const std::byte* values) {
      const auto skip = static_cast<std::size_t>(piece.begin) * size_of(entry.spec.dtype);
      for (const int r : nodes.team().members) {
        round_into(nodes.result(r, piece.parameter) + skip, entry.spec.dtype, values,
                   entry.node_type, piece.end - piece.begin);
      }
    });
  }
}

}  // namespace tutti
