// Values in 16 bits.

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>

#include "kernels/fold.h"
#include "tutti/codec.h"
#include "tutti/dtype.h"

namespace tutti {
namespace {

/// Values that are rounded at a time.
constexpr std::size_t kRounded = 1024;

class RoundingCodec final : public Codec {
 public:
  RoundingCodec(std::string name, DType type) : name_(std::move(name)), type_(type) {}

  std::string name() const override { return name_; }

  std::size_t tile_bytes(std::int64_t count) const override { return bound(count, {}); }

  std::size_t bound(std::int64_t count, const EncodeContext&) const override {
    return static_cast<std::size_t>(count) * size_of(type_);
  }

  Encoded encode(std::span<const float> values, const EncodeContext&,
                 std::byte* message) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    round_into(message, type_, values.data(), DType::float32, count);
    Encoded encoded{.bytes = bound(count, {}), .values = count};
    if (std::isfinite(largest_magnitude(message, type_, count))) return encoded;
    while (std::isfinite(rounded(values[static_cast<std::size_t>(encoded.refused_at)]))) {
      ++encoded.refused_at;
    }
    encoded.refusal = fmt::format("{} is beyond the range of {}",
                                  values[static_cast<std::size_t>(encoded.refused_at)], name_);
    return encoded;
  }

  void decode(std::span<const std::byte> message, const EncodeContext&, std::int64_t begin,
              std::span<float> to) const override {
    scale_into(to.data(), DType::float32,
               message.data() + static_cast<std::size_t>(begin) * size_of(type_), type_,
               static_cast<std::int64_t>(to.size()), 1.0);
  }

  void round_sum(std::span<float> sum) const override {
    std::array<std::byte, 2 * kRounded> rounded;
    for (std::size_t begin = 0; begin < sum.size(); begin += kRounded) {
      const auto piece = sum.subspan(begin, std::min(kRounded, sum.size() - begin));
      const auto count = static_cast<std::int64_t>(piece.size());
      round_into(rounded.data(), type_, piece.data(), DType::float32, count);
      scale_into(piece.data(), DType::float32, rounded.data(), type_, count, 1.0);
    }
  }

  std::size_t sum_bytes(std::int64_t count, std::int64_t, const EncodeContext&) const override {
    return bound(count, {});
  }

 private:
  float rounded(float value) const {
    std::array<std::byte, 2> small;
    round_into(small.data(), type_, &value, DType::float32, 1);
    scale_into(&value, DType::float32, small.data(), type_, 1, 1.0);
    return value;
  }

  std::string name_;
  DType type_;
};

}  // namespace

CodecPointer half_codec() { return std::make_shared<RoundingCodec>("half", DType::float16); }

CodecPointer bfloat16_codec() {
  return std::make_shared<RoundingCodec>("bfloat16", DType::bfloat16);
}

}  // namespace tutti
