#include "sync/update/partitioned_update.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "kernels/update.h"
#include "sync/update/gradient_norms.h"

namespace tutti {
namespace {

template <class Real>
void clip_values(Real* values, std::int64_t count, Real bound) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] > bound) values[i] = bound;
    if (values[i] < -bound) values[i] = -bound;
  }
}

/// Clamps float32 or float64 values to ±bound.
void clip_values(void* values, DType type, std::int64_t count, double bound) {
  if (type == DType::float64) return clip_values(static_cast<double*>(values), count, bound);
  clip_values(static_cast<float*>(values), count, static_cast<float>(bound));
}

}  // namespace

PartitionedUpdate::PartitionedUpdate(StepExchange& exchange, ShardBoard& board, SharedModel& model,
                                     const std::vector<GradientSource*>& sources,
                                     std::vector<std::optional<UpdateRule>> rules,
                                     TileUpdates* others, const Clip& clip)
    : exchange_(exchange),
      board_(board),
      model_(model),
      rules_(exchange.plan(), std::move(rules)),
      others_(others),
      clip_(clip),
      place_(exchange.plan().parameters().size(), sources.size()),
      gradient_(kTile * sizeof(double)) {
  std::vector<std::size_t> blocks(place_.size());
  for (auto* source : sources) {
    const auto stays = [this](std::uint32_t p) { return !rules_.has(p); };
    for (const auto p : source->parameters()) {
      place_[p] = shares_.size();
      blocks[p] = source->norm_blocks(p);
    }
    shares_.push_back({source, OwnedRanges(exchange, *source, stays)});
  }
  norms_ = exchange_.memory().add_common<SectionList<double>>(blocks);
}

/// Null for a per-replica one.
PartitionedUpdate::SourceShare* PartitionedUpdate::share_of(std::uint32_t parameter) {
  return place_[parameter] < shares_.size() ? &shares_[place_[parameter]] : nullptr;
}

Verdict PartitionedUpdate::judge(double loss_scale, Verdict verdict) {
  for (auto& share : shares_) share.source->begin(loss_scale);
  if (!verdict.refusal.empty()) return verdict;
  const auto facts = board_.facts();
  verdict.refusal = refusal_of(facts, exchange_.plan());
  verdict.finite = verdict.refusal.empty();
  const double weight = exchange_.nodes().held().weight();
  if (verdict.finite && weight == 0)
    verdict.refusal = "every shard returned nothing() or the weight 0";
  for (auto share = shares_.begin(); share != shares_.end() && verdict.refusal.empty(); ++share) {
    const auto refusal = share->source->prepare();
    verdict.refusal = refusal.text;
    verdict.finite = !refusal.is_overflow;
  }
  if (!verdict.refusal.empty()) return verdict;
  const auto divisor = exchange_.nodes().divisor();
  // A parameter's contributors may have less weight than all shards: its quotient is looked at.
  const bool overflows = divisor == Divisor::contributors ||
                         may_overflow(facts, (divisor == Divisor::none ? 1 : weight) * loss_scale);
  const auto must_be_kept = [&](const SourceShare& share) {
    return share.source->must_be_kept(overflows);
  };
  if (!needs_norms(clip_) && std::ranges::none_of(shares_, must_be_kept)) return verdict;
  for (auto& share : shares_) {
    share.source->keep(share.ranges.of(exchange_.nodes().team().rank),
                       [this](std::uint32_t p) { return norms_[p]; });
  }
  exchange_.protocol().barrier("the norms of its gradients in");
  verdict.folded = true;
  take_norms(verdict);
  return verdict;
}

void PartitionedUpdate::take_norms(Verdict& verdict) {
  std::vector<std::uint32_t> touched;
  for (std::uint32_t p = 0; p < place_.size(); ++p) {
    if (const auto* share = share_of(p); share != nullptr && share->source->touched(p)) {
      touched.push_back(p);
    }
  }
  auto norms = norms_of(
      exchange_.plan(), clip_, touched,
      [&](std::uint32_t p) -> std::span<const double> { return norms_[p]; },
      verdict.squares_elsewhere);
  verdict.refusal = norms.refusal;
  verdict.finite = norms.refusal.empty();
  verdict.norm = std::sqrt(norms.squares);
  verdict.scales = std::move(norms.scales);
}

UpdateTarget PartitionedUpdate::target_of(const ElementRange& range, const Verdict& verdict) const {
  auto target = model_.target(range);
  if (!verdict.scales.empty()) target.gradient_scale = verdict.scales[range.parameter];
  target.clip_value = clip_.value;
  return target;
}

void PartitionedUpdate::apply(const Verdict& verdict, double rate_factor) {
  auto& buckets = exchange_.buckets();
  const bool leave = buckets.lets_leave() && buckets.buckets() > 0;
  // By bucket where values leave: what is in none of them goes with the first.
  std::map<std::size_t, std::vector<std::pair<SourceShare*, ElementRange>>> owned;
  for (auto& share : shares_) {
    for (const auto& range : share.ranges.of(exchange_.nodes().team().rank)) {
      const auto bucket = leave ? buckets.bucket_of(range.parameter) : 0;
      owned[bucket].emplace_back(&share, range);
    }
  }
  const auto update = [&](std::size_t bucket) {
    for (const auto& [share, range] : owned[bucket]) {
      if (rules_.has(range.parameter)) {
        run_kernel(*share, range, verdict, rate_factor);
      } else {
        run_other(*share, range, verdict, rate_factor);
      }
    }
  };
  if (leave) {
    buckets.update_each(update);
  } else {
    update(0);
  }
  for (auto& share : shares_) share.source->note();
}

void PartitionedUpdate::visit(SourceShare& share, const ElementRange& range, const Verdict& verdict,
                              const GradientSource::Take& take) const {
  if (verdict.folded) return share.source->kept(exchange_.nodes().team().rank, range, take);
  share.source->fold(range, take);
}

void PartitionedUpdate::run_kernel(SourceShare& share, const ElementRange& range,
                                   const Verdict& verdict, double rate_factor) {
  const auto p = range.parameter;
  const auto by = rules_.next(p, rate_factor);
  const auto fused = verdict.folded ? std::nullopt : share.source->fused(range);
  const auto part_of = [&](std::int64_t begin, std::int64_t end) {
    return ElementRange{p, range.begin + begin, range.begin + end};
  };
  const auto take = [&](const ElementRange& piece, const std::byte* values) {
    auto target = target_of(piece, verdict);
    target.gradient = values;
    update(by, target);
    model_.round_values(piece);
  };
  // A source that folds tile by tile does so in a place of its own.
  if (!fused && !verdict.folded) return visit(share, range, verdict, take);
  in_fold_tiles(exchange_.nodes().for_tiles(), range.end - range.begin,
                [&](std::int64_t begin, std::int64_t end) {
                  const auto part = part_of(begin, end);
                  if (!fused) return visit(share, part, verdict, take);
                  run_part(*fused, begin, end, [&](const Fold& fold) {
                    model_.update(part, fold, target_of(part, verdict), by);
                  });
                });
}

void PartitionedUpdate::run_other(SourceShare& share, const ElementRange& range,
                                  const Verdict& verdict, double rate_factor) {
  const auto type = exchange_.plan().parameters()[range.parameter].node_type;
  void* const gradient = gradient_.data();
  visit(share, range, verdict, [&](const ElementRange& tile, const std::byte* values) {
    const auto count = tile.end - tile.begin;
    scale_into(gradient, type, values, type, count, target_of(tile, verdict).gradient_scale);
    if (clip_.value > 0) clip_values(gradient, type, count, clip_.value);
    others_->update(tile, gradient, rate_factor);
    model_.round_values(tile);
  });
}

void PartitionedUpdate::commit(const std::vector<std::uint8_t>& touched, StepReport& report) {
  for (auto& share : shares_) share.source->commit(report);
  for (std::uint32_t p = 0; p < touched.size(); ++p) {
    if (share_of(p) != nullptr) rules_.updates()[p] += touched[p];
  }
}

void PartitionedUpdate::read_gradient(const Verdict& verdict, std::uint32_t parameter,
                                      std::byte* to) {
  auto& share = *share_of(parameter);
  const auto& entry = exchange_.plan().parameters()[parameter];
  const auto take = [&](const ElementRange& tile, const std::byte* values) {
    const auto element = size_of(entry.node_type);
    std::memcpy(to + static_cast<std::size_t>(tile.begin) * element, values,
                static_cast<std::size_t>(tile.end - tile.begin) * element);
  };
  if (!verdict.folded) return share.source->read({parameter, 0, entry.spec.count}, take);
  for (int r = 0; r < exchange_.nodes().team().size(); ++r) {
    for (const auto& range : share.ranges.of(r)) {
      if (range.parameter == parameter) share.source->kept(r, range, take);
    }
  }
}

}  // namespace tutti
