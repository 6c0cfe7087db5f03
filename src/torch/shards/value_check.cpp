#include "torch/shards/value_check.h"

#include "kernels/hash.h"
#include "sync/step/digest_check.h"

namespace tutti {

ValueCheck::ValueCheck(const Plan& plan, int rank, int size, std::int64_t every)
    : plan_(plan), rank_(rank), size_(size), every_(every) {}

void ValueCheck::add(const SharedModel& copy, const std::vector<std::uint32_t>& parameters) {
  for (const auto& range : tile_share(plan_, parameters, rank_, size_)) {
    pieces_.push_back({&copy, range});
  }
}

bool ValueCheck::due(std::int64_t step) const {
  return step >= 2 && is_checked_step(static_cast<std::uint64_t>(step), every_);
}

std::uint64_t ValueCheck::digest_of(const Piece& piece) const {
  const auto element = size_of(plan_.parameters()[piece.range.parameter].spec.dtype);
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

std::optional<std::uint32_t> ValueCheck::first_changed() const {
  for (std::size_t i = 0; i < digests_.size(); ++i) {
    if (digest_of(pieces_[i]) != digests_[i]) return pieces_[i].range.parameter;
  }
  return {};
}

}  // namespace tutti
