#include "tutti/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "base/number.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kPiece = 1024;
constexpr std::string_view kNames =
    "none, half, bfloat16, int8, threshold[:0.05], topk[:0.05[:steps of warm-up]]";

[[noreturn]] void refuse(std::string_view text) {
  throw InvalidArgument(fmt::format("there is no codec \"{}\": there are {}", text, kNames));
}

template <class Number>
Number number_of(std::string_view text, std::string_view digits) {
  const auto number = parse_number<Number>(digits);
  if (!number) refuse(text);
  return *number;
}

void require_sense_of(const MomentumCorrection& numbers, const Compression& compression) {
  if (!compression.codec || !compression.codec->selects()) {
    throw InvalidArgument(fmt::format(
        "momentum correction needs a codec that selects values (Codec::selects()), as topk and "
        "threshold do, not {}",
        compression.codec ? compression.codec->name() : "none"));
  }
  if (!compression.error_feedback)
    throw InvalidArgument("momentum correction needs error feedback");
  if (!(numbers.momentum >= 0 && numbers.momentum < 1)) {
    throw InvalidArgument(
        fmt::format("momentum correction {}: must be at least 0 and below 1", numbers.momentum));
  }
  if (!(numbers.weight_decay >= 0) || !std::isfinite(numbers.weight_decay)) {
    throw InvalidArgument(
        fmt::format("momentum correction: weight decay {}: must be finite and not "
                    "negative",
                    numbers.weight_decay));
  }
}

}  // namespace

void Codec::subtract(std::span<const std::byte> message, const EncodeContext& context,
                     std::span<float> values) const {
  std::array<float, kPiece> sent;
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    const auto piece = values.subspan(begin, std::min(kPiece, values.size() - begin));
    decode(message, context, static_cast<std::int64_t>(begin), {sent.data(), piece.size()});
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] -= sent[i];
  }
}

std::int64_t Codec::max_values() const { return std::numeric_limits<std::int64_t>::max(); }

std::optional<MessageList> Codec::list_of(std::span<const std::byte>) const { return {}; }

std::size_t Codec::tile_bytes(std::int64_t) const { return 0; }

bool Codec::selects() const { return false; }

void Codec::round_sum(std::span<float>) const {}

std::size_t Codec::sum_bytes(std::int64_t count, std::int64_t, const EncodeContext&) const {
  return static_cast<std::size_t>(count) * sizeof(float);
}

std::string_view name_of(MessageFormat message_format) {
  switch (message_format) {
    case MessageFormat::by_size:
      return "by size";
    case MessageFormat::sparse:
      return "sparse";
    case MessageFormat::dense:
      return "dense";
  }
  return "";
}

CodecPointer codec_of(std::string_view text) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  std::optional<double> number;
  std::optional<std::int64_t> steps;
  if (colon != std::string_view::npos) {
    const auto numbers = text.substr(colon + 1);
    const auto second = numbers.find(':');
    number = number_of<double>(text, numbers.substr(0, second));
    if (second != std::string_view::npos) {
      steps = number_of<std::int64_t>(text, numbers.substr(second + 1));
    }
  }
  if (name == "topk") return top_k_codec(number.value_or(kDefaultFraction), steps.value_or(0));
  if (steps) refuse(text);
  if (name == "threshold") return threshold_codec(number.value_or(kDefaultThreshold));
  if (number) refuse(text);
  if (name == "none") return {};
  if (name == "half") return half_codec();
  if (name == "bfloat16") return bfloat16_codec();
  if (name == "int8") return int8_codec();
  refuse(text);
}

std::string text_of(const Compression& compression) {
  if (!compression.codec) return "none";
  std::string correction;
  if (const auto& numbers = compression.momentum_correction) {
    correction = fmt::format(", momentum correction {}{}, weight decay {}", numbers->momentum,
                             numbers->nesterov ? " in Nesterov's form" : "", numbers->weight_decay);
  }
  return fmt::format("{}, error feedback {}, per {}, fusion {}, clamp {}{}",
                     compression.codec->name(), compression.error_feedback ? "on" : "off",
                     // Checkpoints name a bucket so.
                     compression.scope == CodecScope::bucket ? "group" : "tensor",
                     compression.fusion, compression.clamp, correction);
}

void validate(const Compression& compression) {
  if (compression.fusion < 1) {
    throw InvalidArgument(
        fmt::format("compression.fusion {}: must be at least 1", compression.fusion));
  }
  if (!(compression.clamp >= 0) || !std::isfinite(compression.clamp)) {
    throw InvalidArgument(
        fmt::format("compression.clamp {}: must be finite and not negative", compression.clamp));
  }
  if (compression.codec && compression.codec->name().empty()) {
    throw InvalidArgument("a codec must have a name");
  }
  if (compression.momentum_correction) {
    require_sense_of(*compression.momentum_correction, compression);
  }
}

}  // namespace tutti
