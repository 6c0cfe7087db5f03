// Values in 8 bits.

#include <fmt/format.h>

#include "kernels/int8_blocks.h"
#include "tutti/codec.h"

namespace tutti {
namespace {

class Int8Codec final : public Codec {
 public:
  std::string name() const override { return "int8"; }

  /// A tile is whole blocks, or ends with its parameter.
  std::size_t tile_bytes(std::int64_t count) const override { return int8_bytes(count); }

  std::size_t bound(std::int64_t count, const EncodeContext&) const override {
    return int8_bytes(count);
  }

  Encoded encode(std::span<const float> values, const EncodeContext&,
                 std::byte* message) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    const auto refused_at = to_int8(message, values.data(), count);
    if (refused_at < 0) return {.bytes = int8_bytes(count), .values = count};
    return {.refusal = fmt::format("{} is beyond the range of int8",
                                   values[static_cast<std::size_t>(refused_at)]),
            .refused_at = refused_at};
  }

  void decode(std::span<const std::byte> message, const EncodeContext&, std::int64_t begin,
              std::span<float> to) const override {
    from_int8(to.data(), message.data(), begin, static_cast<std::int64_t>(to.size()));
  }

  void subtract(std::span<const std::byte> message, const EncodeContext&,
                std::span<float> values) const override {
    subtract_int8(values.data(), message.data(), static_cast<std::int64_t>(values.size()));
  }

  void round_sum(std::span<float> sum) const override {
    round_to_int8(sum.data(), static_cast<std::int64_t>(sum.size()));
  }

  std::size_t sum_bytes(std::int64_t count, std::int64_t, const EncodeContext&) const override {
    return int8_bytes(count);
  }
};

}  // namespace

CodecPointer int8_codec() { return std::make_shared<Int8Codec>(); }

}  // namespace tutti
