#include "sync/coded/bucket_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "codec/sparse_message.h"
#include "kernels/fold.h"
#include "sync/plan/tile_share.h"
#include "tutti/error.h"

namespace tutti {
namespace {

void keep_within(float* values, std::int64_t count, float bound) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = std::clamp(values[i], -bound, bound);
}

}  // namespace

bool works_in_tiles(const Compression& compression) {
  return compression.codec->tile_bytes(1) > 0 && !compression.momentum_correction;
}

std::size_t part_bytes(const Codec& codec, std::int64_t count) {
  const auto tiles = static_cast<std::size_t>(count / kTile);
  const auto rest = count % kTile;
  return tiles * codec.tile_bytes(kTile) + (rest > 0 ? codec.tile_bytes(rest) : 0);
}

BucketEncoder::BucketEncoder(const Plan& plan, MessageStore& board, const Compression& compression,
                             Values values)
    : plan_(plan), board_(board), compression_(compression), own_values_(std::move(values)) {
  std::int64_t largest = 0;
  if (works_in_tiles(compression_)) {
    if (!board_.has_residuals()) values_.resize(static_cast<std::size_t>(kTile));
    return;
  }
  for (const auto& bucket : board.buckets()) {
    // A parameter by itself is made where its residual will be.
    if (board.has_residuals() && bucket.size() == 1) continue;
    largest = std::max(largest, elements_of(plan, bucket));
  }
  values_.resize(static_cast<std::size_t>(largest));
}

std::optional<BucketEncoder::Message> BucketEncoder::values_of(const MessageTask& task,
                                                               const Folds& folds) {
  Message made;
  std::int64_t count = 0;
  for (const auto p : task.touched) {
    made.at.push_back(count);
    count += count_of(p);
  }
  if (count == 0) return {};
  float* values = nullptr;
  if (board_.has_residuals() && task.touched.size() == board_.buckets()[task.bucket].size()) {
    values = board_.next_residuals(task.logical, task.bucket);
  }
  if (values == nullptr) values = values_.data();
  made.values = {values, static_cast<std::size_t>(count)};
  for (std::size_t k = 0; k < task.touched.size(); ++k) {
    const auto p = task.touched[k];
    if (count_of(p) == 0) continue;
    const auto fold = folds(p);
    for (std::int64_t begin = 0; begin < count_of(p); begin += kTile) {
      const auto how = make_tile(task.logical, p, fold, begin,
                                 {values + made.at[k] + begin,
                                  static_cast<std::size_t>(std::min(kTile, count_of(p) - begin))});
      if (how == Made::well) continue;
      refuse(task, p, how);
      return {};
    }
  }
  return made;
}

void BucketEncoder::encode(const MessageTask& task, const Folds& folds) {
  auto& header = board_.header(task.logical, task.bucket);
  header = {};
  if (works_in_tiles(compression_)) return encode_in_tiles(task, folds);
  const auto made = values_of(task, folds);
  if (!made) return;
  const auto count = static_cast<std::int64_t>(made->values.size());
  const auto context = context_of(count, task.step);
  auto* const message = board_.message(task.logical, task.bucket);
  const auto encoded = compression_.codec->encode(made->values, context, message);
  if (!encoded.refusal.empty()) {
    const auto& at = made->at;
    const auto culprit = std::upper_bound(at.begin(), at.end(), encoded.refused_at) - at.begin();
    return refuse(task, task.touched[static_cast<std::size_t>(culprit - 1)],
                  "cannot be sent: " + encoded.refusal);
  }
  require_room(task.bucket, count, encoded.bytes);
  header.bytes = encoded.bytes;
  header.values = encoded.values;
  header.is_dense = encoded.is_dense;
  if (board_.has_residuals()) keep(task, *made, context, {message, encoded.bytes});
}

/// Residuals become what the message leaves out; elements that it sends lose their velocity.
void BucketEncoder::keep(const MessageTask& task, const Message& made, const EncodeContext& context,
                         std::span<const std::byte> message) {
  compression_.codec->subtract(message, context, made.values);
  std::array<float, kTile> sent;
  for (std::size_t k = 0; k < task.touched.size(); ++k) {
    const auto p = task.touched[k];
    auto* const left = made.values.data() + made.at[k];
    auto* const residual = board_.next(Kept::residual, task.logical, p);
    if (residual != left) {
      std::memcpy(residual, left, static_cast<std::size_t>(count_of(p)) * sizeof(float));
    }
    if (!compression_.momentum_correction) continue;
    auto* const velocity = board_.next(Kept::velocity, task.logical, p);
    for (std::int64_t begin = 0; begin < count_of(p); begin += kTile) {
      const std::span tile(sent.data(),
                           static_cast<std::size_t>(std::min(kTile, count_of(p) - begin)));
      compression_.codec->decode(message, context, made.at[k] + begin, tile);
      for (std::size_t i = 0; i < tile.size(); ++i) {
        if (!is_absent(tile[i])) velocity[begin + static_cast<std::int64_t>(i)] = 0;
      }
    }
  }
}

BucketEncoder::Made BucketEncoder::make_tile(std::size_t logical, std::uint32_t parameter,
                                             const TileFold& fold, std::int64_t begin,
                                             std::span<float> tile) {
  const auto count = static_cast<std::int64_t>(tile.size());
  const auto is_finite = [&] {
    return std::isfinite(largest_magnitude(tile.data(), DType::float32, count));
  };
  fold(begin, count, tile.data());
  if (compression_.clamp > 0) {
    if (!is_finite()) return Made::overflow;  // a clamp would hide it
    keep_within(tile.data(), count, static_cast<float>(compression_.clamp));
  }
  add_what_is_kept(logical, parameter, begin, tile);
  if (is_finite()) return Made::well;
  fold(begin, count, tile.data());
  return is_finite() ? Made::with_residual : Made::overflow;
}

void BucketEncoder::require_room(std::size_t bucket, std::int64_t count, std::size_t bytes) const {
  if (bytes <= board_.room(bucket)) return;
  throw InvalidArgument(
      fmt::format("codec {}: a message of {} values has {} bytes, its bound is {}",
                  compression_.codec->name(), count, bytes, board_.room(bucket)));
}

/// A value that is not finite is reported before one that cannot be sent, as where all values are
/// made before any is encoded.
void BucketEncoder::encode_in_tiles(const MessageTask& task, const Folds& folds) {
  const auto& codec = *compression_.codec;
  auto& header = board_.header(task.logical, task.bucket);
  auto* message = board_.message(task.logical, task.bucket);
  std::optional<std::pair<std::uint32_t, std::string>> refusal;
  for (const auto p : task.touched) {
    const auto fold = folds(p);
    float* const residual =
        board_.has_residuals() ? board_.next(Kept::residual, task.logical, p) : nullptr;
    for (std::int64_t begin = 0; begin < count_of(p); begin += kTile) {
      const auto count = std::min(kTile, count_of(p) - begin);
      const std::span<float> tile(residual != nullptr ? residual + begin : values_.data(),
                                  static_cast<std::size_t>(count));
      const auto how = make_tile(task.logical, p, fold, begin, tile);
      if (how != Made::well) return refuse(task, p, how);
      if (refusal) continue;
      const auto context = context_of(count, task.step);
      const auto bytes = codec.tile_bytes(count);
      const auto encoded = codec.encode(tile, context, message);
      if (!encoded.refusal.empty()) {
        refusal.emplace(p, encoded.refusal);
        continue;
      }
      if (encoded.bytes != bytes) {
        throw InvalidArgument(fmt::format("codec {}: {} values have {} bytes, not the {} it says",
                                          codec.name(), count, encoded.bytes, bytes));
      }
      header.values += encoded.values;
      header.bytes += bytes;
      header.is_dense = encoded.is_dense;
      if (residual != nullptr) codec.subtract({message, bytes}, context, tile);
      message += bytes;
    }
  }
  if (!refusal) return;
  header = {};
  refuse(task, refusal->first, "cannot be sent: " + refusal->second);
}

void BucketEncoder::add_what_is_kept(std::size_t logical, std::uint32_t parameter,
                                     std::int64_t begin, std::span<float> tile) {
  constexpr auto kType = DType::float32;
  const auto count = static_cast<std::int64_t>(tile.size());
  if (const auto& correction = compression_.momentum_correction) {
    if (correction->weight_decay > 0) {
      const auto own = own_values_(parameter);
      add_scaled(tile.data(), kType, own.data + static_cast<std::size_t>(begin) * size_of(own.type),
                 own.type, count, correction->weight_decay);
    }
    float* const velocity = board_.next(Kept::velocity, logical, parameter) + begin;
    scale_into(velocity, kType, board_.kept(Kept::velocity, logical, parameter) + begin, kType,
               count, correction->momentum);
    add_scaled(velocity, kType, tile.data(), kType, count, 1.0);
    if (correction->nesterov) {
      add_scaled(tile.data(), kType, velocity, kType, count, correction->momentum);
    } else {
      std::memcpy(tile.data(), velocity, tile.size_bytes());
    }
  }
  if (board_.has_residuals()) {
    add_scaled(tile.data(), kType, board_.kept(Kept::residual, logical, parameter) + begin, kType,
               count, 1.0);
  }
}

void BucketEncoder::refuse(const MessageTask& task, std::uint32_t parameter, Made how) {
  auto& header = board_.header(task.logical, task.bucket);
  header = {};
  header.is_overflow = how == Made::overflow;
  refuse(task, parameter,
         how == Made::overflow ? "is not finite" : "and what earlier ones left is not finite");
}

void BucketEncoder::refuse(const MessageTask& task, std::uint32_t parameter,
                           const std::string& why) {
  auto& text = board_.header(task.logical, task.bucket).refusal;
  *fmt::format_to_n(text, sizeof text - 1, "the gradient of \"{}\" in logical worker {} {}",
                    plan_.parameters()[parameter].spec.name, task.logical, why)
       .out = 0;
}

}  // namespace tutti
