// What a shard leaves besides its gradients: its loss, its metrics, and how large they are. On a
// device the host reads that once, after the worker's last shard.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "run/numbers/metric_exchange.h"
#include "torch/shards/shard_runner.h"
#include "tutti/error.h"

namespace tutti {

void ShardRunner::note_answer(Shard& shard, const ShardAnswer& answer) {
  if (answer.kind_ == ShardAnswer::Kind::none) {
    throw InvalidArgument(fmt::format(
        "shard {}: its closure gave no answer: return shard.loss(…), shard.gradients(…) or "
        "shard.nothing()",
        shard_));
  }
  if (numbers_ && !repeats()) to_come_.push_back({.shard = shard_, .weight = answer.weight_});
  if (answer.kind_ != ShardAnswer::Kind::loss) return;
  if (!numbers_ || (parts_.audit != nullptr && parts_.audit->records())) {
    shard.metrics_.weighted_mean(kLossName, answer.loss_.item<double>(), answer.weight_);
    return;
  }
  ShardMetrics(shard.metrics_).weighted_mean(kLossName, 0, answer.weight_);  // what it refuses
  to_come_.back().loss = numbers_->add_copy(answer.loss_);
}

void ShardRunner::bring() {
  parts_.buffers.bring();
  const auto numbers = numbers_->fetch();
  for (auto& one : std::exchange(to_come_, {})) {
    if (one.loss) one.metrics.weighted_mean(kLossName, numbers[*one.loss], one.weight);
    parts_.notes.add(std::move(one.metrics));
    note_magnitudes(parts_.board.mine().all, one.shard, false, [&](std::size_t p) {
      const auto place = one.largest.find(p);
      return place == one.largest.end() ? 0 : numbers[place->second];
    });
  }
}

/// The shard that was computed last has a weight.
void ShardRunner::note_ran(std::size_t logical) {
  parts_.notes.same_shards().end_shard();
  auto& mine = parts_.board.mine();
  if (numbers_) {
    to_come_.back().largest = intake_.device().take_magnitudes();
  } else {
    const auto magnitude_of = [&](std::size_t p) { return parts_.exchange.leaves().magnitude(p); };
    note_magnitudes(mine.all, shard_, false, magnitude_of);
    if (parts_.replicas != nullptr) note_magnitudes(mine.own[logical], shard_, true, magnitude_of);
  }
  if (mine.own_first_ran[logical] < 0) mine.own_first_ran[logical] = shard_;
  if (mine.ran++ == 0) mine.first_ran = shard_;
}

void ShardRunner::note_magnitudes(GradientFacts& facts, std::int64_t shard, bool per_replica,
                                  const MagnitudeOf& magnitude_of) const {
  double largest = 0;
  for (std::size_t p = 0; p < parts_.model.parameters().size(); ++p) {
    if (parts_.model.is_per_replica(p) != per_replica) continue;
    const double magnitude = magnitude_of(p);
    largest = std::max(largest, magnitude);
    if (!std::isfinite(magnitude)) facts.note_bad(shard, static_cast<std::int64_t>(p));
  }
  facts.bound += largest;
}

}  // namespace tutti
