// Some of the values, as they are: those above a threshold, or the k largest.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "codec/sparse_message.h"
#include "kernels/select.h"
#include "tutti/codec.h"
#include "tutti/error.h"

namespace tutti {
namespace {

class SelectingCodec : public Codec {
 public:
  std::int64_t max_values() const override { return std::numeric_limits<std::uint32_t>::max(); }

  std::size_t bound(std::int64_t count, const EncodeContext& context) const override {
    const auto entries = std::min(count, max_entries(count, context));
    return kSparseHeader + std::max(static_cast<std::size_t>(entries) * kSparseEntry,
                                    static_cast<std::size_t>(count) * sizeof(float));
  }

  bool selects() const override { return true; }

  void decode(std::span<const std::byte> message, const EncodeContext&, std::int64_t begin,
              std::span<float> to) const override {
    decode_sparse(message, begin, to);
  }

  std::optional<MessageList> list_of(std::span<const std::byte> message) const override {
    return list_of_sparse(message);
  }

  void subtract(std::span<const std::byte> message, const EncodeContext&,
                std::span<float> values) const override {
    clear_sent(message, values);
  }

  std::size_t sum_bytes(std::int64_t count, std::int64_t values,
                        const EncodeContext& context) const override {
    const auto dense = static_cast<std::size_t>(count) * sizeof(float);
    const auto list = static_cast<std::size_t>(values) * kSparseEntry;
    if (context.message_format == MessageFormat::dense) return kSparseHeader + dense;
    if (context.message_format == MessageFormat::sparse) return kSparseHeader + list;
    return kSparseHeader + std::min(dense, list);
  }
};

class ThresholdCodec final : public SelectingCodec {
 public:
  explicit ThresholdCodec(double threshold) : threshold_(threshold) {
    if (!(threshold >= 0) || !std::isfinite(static_cast<float>(threshold))) {
      throw InvalidArgument(
          fmt::format("threshold {}: must be not negative, and finite in float32", threshold));
    }
  }

  std::string name() const override { return fmt::format("threshold:{}", threshold_); }

  Encoded encode(std::span<const float> values, const EncodeContext& context,
                 std::byte* message) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    const auto threshold = static_cast<float>(threshold_);
    const auto room = max_entries(count, context);
    // The number of selected values is known only afterwards: the values then move up.
    const auto list = begin_list(message, room);
    const auto selected =
        select_at_least(values.data(), count, threshold, list.indices, list.values, room);
    const bool is_list = travels_as_list(count, selected.count, context);
    if (is_list) {
      const auto fitted = begin_list(message, selected.count);
      std::copy_n(list.values, selected.count, fitted.values);
    } else {
      auto* const array = begin_array(message, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const float value = values[static_cast<std::size_t>(i)];
        if (std::abs(value) >= threshold) array[i] = value;
      }
    }
    return {.bytes = sparse_bytes(count, selected.count, context),
            .values = selected.count,
            .is_dense = !is_list};
  }

 private:
  double threshold_;
};

class TopKCodec final : public SelectingCodec {
 public:
  TopKCodec(double fraction, std::int64_t warm_up) : fraction_(fraction), warm_up_(warm_up) {
    if (!(fraction > 0 && fraction <= 1)) {
      throw InvalidArgument(fmt::format("top-k fraction {}: must be in (0, 1]", fraction));
    }
    if (warm_up < 0) throw InvalidArgument(fmt::format("top-k: {} steps of warm-up", warm_up));
  }

  std::string name() const override {
    return fmt::format("topk:{}{}", fraction_, warm_up_ > 0 ? fmt::format(":{}", warm_up_) : "");
  }

  Encoded encode(std::span<const float> values, const EncodeContext& context,
                 std::byte* message) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    const auto k = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(
            std::floor(fraction_in(context.step) * static_cast<double>(count) + 0.5)),
        1, count);
    const bool is_list = travels_as_list(count, k, context);
    SelectScratch scratch;
    if (is_list) {
      const auto list = begin_list(message, k);
      select_largest(values.data(), count, k, list.indices, list.values, scratch);
    } else {
      std::vector<std::uint32_t> indices(static_cast<std::size_t>(k));
      std::vector<float> kept(indices.size());
      select_largest(values.data(), count, k, indices.data(), kept.data(), scratch);
      auto* const array = begin_array(message, count);
      for (std::size_t i = 0; i < indices.size(); ++i) array[indices[i]] = kept[i];
    }
    return {.bytes = sparse_bytes(count, k, context), .values = k, .is_dense = !is_list};
  }

 private:
  /// A quarter of the one before in each quarter of the warm-up.
  double fraction_in(std::int64_t step) const {
    if (step > warm_up_) return fraction_;
    const auto quarter = static_cast<int>((step - 1) * kQuarters / warm_up_);
    return std::max(fraction_, std::ldexp(1.0, -2 * (quarter + 1)));
  }

  static constexpr std::int64_t kQuarters = 4;

  double fraction_;
  std::int64_t warm_up_;
};

}  // namespace

CodecPointer threshold_codec(double threshold) {
  return std::make_shared<ThresholdCodec>(threshold);
}

CodecPointer top_k_codec(double fraction, std::int64_t warm_up) {
  return std::make_shared<TopKCodec>(fraction, warm_up);
}

}  // namespace tutti
