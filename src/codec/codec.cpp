#include "tutti/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kPiece = 1024;
constexpr std::string_view kNames = "none, half, bfloat16, threshold[:0.05], topk[:0.05]";

[[noreturn]] void refuse(std::string_view text) {
  throw BadInput(fmt::format("there is no codec \"{}\": there are {}", text, kNames));
}

double number_of(std::string_view text, std::string_view digits) {
  double number = 0;
  const auto* const end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || stopped != end) refuse(text);
  return number;
}

}  // namespace

void Codec::subtract(std::span<const std::byte> message, std::span<float> values) const {
  std::array<float, kPiece> sent;
  for (std::size_t begin = 0; begin < values.size(); begin += kPiece) {
    const auto piece = values.subspan(begin, std::min(kPiece, values.size() - begin));
    decode(message, static_cast<std::int64_t>(values.size()), static_cast<std::int64_t>(begin),
           {sent.data(), piece.size()});
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] -= sent[i];
  }
}

std::int64_t Codec::most_values() const { return std::numeric_limits<std::int64_t>::max(); }

std::optional<MessageList> Codec::list_of(std::span<const std::byte>) const { return {}; }

void Codec::round_sum(std::span<float>) const {}

std::size_t Codec::sum_bytes(std::int64_t count, std::int64_t, const Exchange&) const {
  return static_cast<std::size_t>(count) * sizeof(float);
}

std::string_view name_of(Transport transport) {
  switch (transport) {
    case Transport::by_size:
      return "by size";
    case Transport::sparse:
      return "sparse";
    case Transport::dense:
      return "dense";
  }
  return "";
}

CodecPointer codec_of(std::string_view text) {
  const auto colon = text.find(':');
  const auto name = text.substr(0, colon);
  std::optional<double> number;
  if (colon != std::string_view::npos) number = number_of(text, text.substr(colon + 1));
  if (name == "threshold") return threshold_codec(number.value_or(kDefaultThreshold));
  if (name == "topk") return top_k_codec(number.value_or(kDefaultFraction));
  if (number) refuse(text);
  if (name == "none") return {};
  if (name == "half") return half_codec();
  if (name == "bfloat16") return bfloat16_codec();
  refuse(text);
}

std::string text_of(const Compression& compression) {
  if (!compression.codec) return "none";
  return fmt::format("{}, error feedback {}, per {}, fusion {}, clamp {}",
                     compression.codec->name(), compression.error_feedback ? "on" : "off",
                     compression.scope == CodecScope::group ? "group" : "tensor",
                     compression.fusion, compression.clamp);
}

void require_sense(const Compression& compression) {
  if (compression.fusion < 1) {
    throw BadInput(fmt::format("compression.fusion {}: must be at least 1", compression.fusion));
  }
  if (!(compression.clamp >= 0) || !std::isfinite(compression.clamp)) {
    throw BadInput(
        fmt::format("compression.clamp {}: must be finite and not negative", compression.clamp));
  }
  if (compression.codec && compression.codec->name().empty()) {
    throw BadInput("a codec must have a name");
  }
}

}  // namespace tutti
