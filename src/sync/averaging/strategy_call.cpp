#include "sync/averaging/strategy_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

#include "kernels/fold.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// As float64.
void widen(const std::byte* from, DType type, std::span<double> to) {
  if (type == DType::float64) {
    std::memcpy(to.data(), from, to.size_bytes());
  } else {
    std::copy_n(reinterpret_cast<const float*>(from), to.size(), to.begin());
  }
}

/// Rounded once.
void narrow(std::span<const double> from, std::byte* to, DType type) {
  if (type == DType::float64) {
    std::memcpy(to, from.data(), from.size_bytes());
  } else {
    std::transform(from.begin(), from.end(), reinterpret_cast<float*>(to),
                   [](double value) { return static_cast<float>(value); });
  }
}

}  // namespace

StrategyCall::StrategyCall(const Strategy& strategy, std::int64_t logical_workers,
                           std::int64_t most)
    : strategy_(strategy),
      logical_workers_(logical_workers),
      wide_(static_cast<std::size_t>(2 + strategy.states()),
            std::vector<double>(static_cast<std::size_t>(most))) {}

void StrategyCall::ask(const std::string& parameter, const StrategyPiece& piece) {
  const auto wide = [&](std::size_t k) {
    return std::span(wide_[k]).first(static_cast<std::size_t>(piece.count));
  };
  Meeting meeting{
      .values = wide(0), .before = {}, .logical_workers = logical_workers_, .states = {}};
  widen(piece.values, piece.type, wide(0));
  if (piece.before != nullptr) {
    widen(piece.before, piece.type, wide(1));
    meeting.before = wide(1);
  }
  for (std::size_t k = 0; k < piece.states.size(); ++k) {
    widen(piece.states[k], piece.type, wide(2 + k));
    meeting.states.push_back(wide(2 + k));
  }
  try {
    strategy_.combine(meeting);
  } catch (const std::exception& error) {
    throw Mismatch(fmt::format("strategy {}, parameter \"{}\": {}", strategy_.name(), parameter,
                               error.what()));
  }
  narrow(wide(0), piece.values, piece.type);
  if (!std::isfinite(largest_magnitude(piece.values, piece.type, piece.count))) {
    throw Mismatch(
        fmt::format("strategy {}, parameter \"{}\": what its copies become is not finite",
                    strategy_.name(), parameter));
  }
  if (piece.before != nullptr) narrow(wide(0), piece.before, piece.type);
  for (std::size_t k = 0; k < piece.states.size(); ++k) {
    narrow(wide(2 + k), piece.states[k], piece.type);
  }
}

}  // namespace tutti
