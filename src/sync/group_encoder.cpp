#include "sync/group_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/fold.h"
#include "sync/tile_share.h"
#include "tutti/error.h"

namespace tutti {
namespace {

void keep_within(float* values, std::int64_t count, float bound) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = std::clamp(values[i], -bound, bound);
}

}  // namespace

GroupEncoder::GroupEncoder(const Plan& plan, MessageBoard& board, const Compression& compression)
    : plan_(plan), board_(board), compression_(compression) {
  std::int64_t largest = 0;
  for (const auto& group : board.groups()) {
    // A parameter by itself is made where its residual will be.
    if (board.has_residuals() && group.size() == 1) continue;
    largest = std::max(largest, elements_of(plan, group));
  }
  values_.resize(static_cast<std::size_t>(largest));
}

void GroupEncoder::encode(std::size_t logical, std::size_t group,
                          std::span<const std::uint32_t> touched, const Folds& folds) {
  auto& header = board_.header(logical, group);
  header = {};
  std::vector<std::int64_t> at;  // of each touched parameter, among the values
  std::int64_t count = 0;
  for (const auto p : touched) {
    at.push_back(count);
    count += count_of(p);
  }
  if (count == 0) return;
  float* values = nullptr;
  if (board_.has_residuals() && touched.size() == board_.groups()[group].size()) {
    values = board_.next_residuals(logical, group);
  }
  if (values == nullptr) values = values_.data();
  for (std::size_t k = 0; k < touched.size(); ++k) {
    if (count_of(touched[k]) == 0) continue;
    const auto made = make_values(logical, touched[k], folds(touched[k]), values + at[k]);
    if (made == Made::well) continue;
    header.is_overflow = made == Made::overflow;
    return refuse(
        logical, group, touched[k],
        made == Made::overflow ? "is not finite" : "and what earlier ones left is not finite");
  }
  const std::span<float> all(values, static_cast<std::size_t>(count));
  auto* const message = board_.message(logical, group);
  const auto encoded = compression_.codec->encode(all, exchange(), message);
  if (!encoded.refusal.empty()) {
    const auto culprit = std::upper_bound(at.begin(), at.end(), encoded.refused_at) - at.begin();
    return refuse(logical, group, touched[static_cast<std::size_t>(culprit - 1)],
                  "cannot be sent: " + encoded.refusal);
  }
  if (encoded.bytes > board_.room(group)) {
    throw BadInput(fmt::format("codec {}: a message of {} values has {} bytes, its bound is {}",
                               compression_.codec->name(), count, encoded.bytes,
                               board_.room(group)));
  }
  header.bytes = encoded.bytes;
  header.values = encoded.values;
  header.is_dense = encoded.is_dense;
  if (!board_.has_residuals()) return;
  compression_.codec->subtract({message, encoded.bytes}, all);
  for (std::size_t k = 0; k < touched.size(); ++k) {
    auto* const residual = board_.next_residual(logical, touched[k]);
    if (residual == values + at[k]) continue;
    std::memcpy(residual, values + at[k],
                static_cast<std::size_t>(count_of(touched[k])) * sizeof(float));
  }
}

/// Tile by tile, while it is hot; what is not finite is found.
GroupEncoder::Made GroupEncoder::make_values(std::size_t logical, std::uint32_t parameter,
                                             const TileFold& fold, float* to) {
  const auto total = count_of(parameter);
  const auto is_finite = [](const float* tile, std::int64_t count) {
    return std::isfinite(largest_magnitude(tile, DType::float32, count));
  };
  for (std::int64_t begin = 0; begin < total; begin += kTile) {
    const auto count = std::min(kTile, total - begin);
    float* const tile = to + begin;
    fold(begin, count, tile);
    if (compression_.clamp > 0) {
      if (!is_finite(tile, count)) return Made::overflow;  // a clamp would hide it
      keep_within(tile, count, static_cast<float>(compression_.clamp));
    }
    if (board_.has_residuals()) {
      add_scaled(tile, DType::float32, board_.residual(logical, parameter) + begin, DType::float32,
                 count, 1.0);
    }
    if (is_finite(tile, count)) continue;
    fold(begin, count, tile);
    return is_finite(tile, count) ? Made::with_residual : Made::overflow;
  }
  return Made::well;
}

void GroupEncoder::refuse(std::size_t logical, std::size_t group, std::uint32_t parameter,
                          const std::string& why) {
  auto& text = board_.header(logical, group).refusal;
  *fmt::format_to_n(text, sizeof text - 1, "the gradient of \"{}\" in logical worker {} {}",
                    plan_.parameters()[parameter].spec.name, logical, why)
       .out = 0;
}

}  // namespace tutti
