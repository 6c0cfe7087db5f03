#include "torch/shards/value_check.h"

#include <fmt/format.h>

#include <utility>

#include "kernels/hash.h"
#include "sync/step/digest_check.h"
#include "tutti/error.h"

namespace tutti {

ValueCheck::ValueCheck(StepExchange& exchange, const WrappedModel& model, SharedParameters& shown,
                       std::int64_t every, std::string name)
    : exchange_(exchange), model_(model), shown_(shown), every_(every), name_(std::move(name)) {}

void ValueCheck::add(const SharedModel& copy, const std::vector<std::uint32_t>& parameters) {
  const auto& team = exchange_.nodes().team();
  for (const auto& range : tile_share(exchange_.plan(), parameters, team.rank, team.size())) {
    pieces_.push_back({&copy, range});
  }
}

bool ValueCheck::due(std::int64_t step) const {
  return step >= 2 && is_checked_step(static_cast<std::uint64_t>(step), every_);
}

std::uint64_t ValueCheck::digest_of(const Piece& piece) const {
  const auto element = size_of(exchange_.plan().parameters()[piece.range.parameter].spec.dtype);
  const auto* const values = piece.copy->value(piece.range.parameter);
  return digest(values + static_cast<std::size_t>(piece.range.begin) * element,
                static_cast<std::size_t>(piece.range.end - piece.range.begin) * element);
}

void ValueCheck::expect(std::int64_t step) {
  digests_.clear();
  expects_ = due(step);
  if (!expects_) return;
  for (const auto& piece : pieces_) digests_.push_back(digest_of(piece));
}

void ValueCheck::judge(StepFacts&) {
  if (!expects_) return;
  for (std::size_t i = 0; i < digests_.size(); ++i) {
    if (digest_of(pieces_[i]) == digests_[i]) continue;
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of \"{}\" was changed between steps, or by a shard, in a way that torch "
        "does not count (data(), a pointer); all workers share it, so each one's change would "
        "count: change values inside trainer.edit()",
        model_.name(pieces_[i].range.parameter), name_));
  }
  if (const auto p = shown_.differing()) {
    throw InvalidArgument(fmt::format(
        "parameter \"{}\" of \"{}\" was changed on this worker, between steps or by a shard, in a "
        "way that torch does not count (data(), a pointer): change values inside trainer.edit()",
        model_.name(*p), name_));
  }
  exchange_.protocol().barrier("the check of parameters in");
}

}  // namespace tutti
