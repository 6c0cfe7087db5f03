#include "sync/group_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/fold.h"
#include "sync/tile_share.h"

namespace tutti {
namespace {

void keep_within(float* values, std::int64_t count, float bound) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = std::clamp(values[i], -bound, bound);
}

}  // namespace

GroupEncoder::GroupEncoder(const Plan& plan, MessageBoard& board, const Compression& compression)
    : plan_(plan), board_(board), compression_(compression) {
  std::size_t largest = 0;
  for (const auto& group : board.groups()) {
    std::size_t count = 0;
    for (const auto p : group) count += static_cast<std::size_t>(count_of(p));
    largest = std::max(largest, count);
  }
  values_.resize(largest);
}

Exchange GroupEncoder::exchange() const {
  return {.logical_workers = static_cast<std::int64_t>(board_.logical_workers()),
          .transport = compression_.transport};
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
    if (!make_values(logical, touched[k], folds(touched[k]), values + at[k])) {
      return refuse(logical, group, touched[k], "and what earlier ones left is not finite");
    }
  }
  const std::span<float> all(values, static_cast<std::size_t>(count));
  auto* const message = board_.message(logical, group);
  const auto encoded = compression_.codec->encode(all, exchange(), message);
  if (!encoded.refusal.empty()) {
    const auto culprit = std::upper_bound(at.begin(), at.end(), encoded.refused_at) - at.begin();
    return refuse(logical, group, touched[static_cast<std::size_t>(culprit - 1)],
                  "cannot be sent: " + encoded.refusal);
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

/// Tile by tile, while it is hot. False where something is not finite.
bool GroupEncoder::make_values(std::size_t logical, std::uint32_t parameter, const TileFold& fold,
                               float* to) {
  const auto total = count_of(parameter);
  for (std::int64_t begin = 0; begin < total; begin += kTile) {
    const auto count = std::min(kTile, total - begin);
    float* const tile = to + begin;
    fold(begin, count, tile);
    if (compression_.clamp > 0) keep_within(tile, count, static_cast<float>(compression_.clamp));
    if (board_.has_residuals()) {
      add_scaled(tile, DType::float32, board_.residual(logical, parameter) + begin, DType::float32,
                 count, 1.0);
    }
    if (!std::isfinite(largest_magnitude(tile, DType::float32, count))) return false;
  }
  return true;
}

void GroupEncoder::refuse(std::size_t logical, std::size_t group, std::uint32_t parameter,
                          const std::string& why) {
  auto& text = board_.header(logical, group).refusal;
  *fmt::format_to_n(text, sizeof text - 1, "the gradient of \"{}\" in logical worker {} {}",
                    plan_.parameters()[parameter].spec.name, logical, why)
       .out = 0;
}

}  // namespace tutti
