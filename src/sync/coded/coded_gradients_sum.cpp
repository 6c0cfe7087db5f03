// The sum of the messages of a step: see coded_gradients.h.

#include <algorithm>
#include <limits>

#include "codec/sparse_message.h"
#include "kernels/fold.h"
#include "sync/coded/coded_gradients.h"

namespace tutti {

SumTerm CodedGradients::term_of(std::size_t logical, std::uint32_t parameter) const {
  const auto bucket = board_.bucket_of(parameter);
  const auto& one = carried_[logical];
  if (works_in_tiles(options_.compression)) {
    const auto count = count_of(parameter);
    return {.message = {board_.message(logical, bucket) + one.part_at[parameter],
                        part_bytes(*options_.compression.codec, count)},
            .context = encoder_.context_of(count, exchange_.protocol().number()),
            .first = 0,
            .share = one.share[parameter],
            .place = place_of(logical)};
  }
  return {.message = {board_.message(logical, bucket), board_.header(logical, bucket).bytes},
          .context = encoder_.context_of(one.elements[bucket], exchange_.protocol().number()),
          .first = one.at_in_message[parameter],
          .share = one.share[parameter],
          .place = place_of(logical)};
}

/// Only the owner counts values that are not −0.0.
void CodedGradients::fold_to(const ElementRange& range, void* to, bool counts) {
  auto* at = static_cast<float*>(to);
  if (!is_prepared_) {
    // There are no messages that it could be read from.
    std::fill_n(at, range.end - range.begin, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  std::vector<SumTerm> terms;
  for (std::size_t l = 0; l < carried_.size(); ++l) {
    if (carried_[l].touched[range.parameter] != 0) terms.push_back(term_of(l, range.parameter));
  }
  std::int64_t values = 0;
  for (auto begin = range.begin; begin < range.end; begin += kTile, at += kTile) {
    const std::span<float> tile(at, static_cast<std::size_t>(std::min(kTile, range.end - begin)));
    sum_.take(terms, begin, tile);
    options_.compression.codec->round_sum(tile);
    values += std::count_if(tile.begin(), tile.end(), [](float x) { return !is_absent(x); });
    if (options_.divisor == Divisor::none) {
      scale_into(at, DType::float32, at, DType::float32, static_cast<std::int64_t>(tile.size()),
                 nodes().held().weight());
    }
  }
  if (!counts) return;
  board_.sum_values(board_.bucket_of(range.parameter)).fetch_add(values, std::memory_order_relaxed);
}

}  // namespace tutti
