#include "sync/averaging/policy_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

#include "kernels/fold.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Every value of both types is a float64.
void widen(const std::byte* from, DType type, std::span<double> to) {
  if (type == DType::float64) {
    std::memcpy(to.data(), from, to.size_bytes());
  } else {
    std::copy_n(reinterpret_cast<const float*>(from), to.size(), to.begin());
  }
}

/// Each value is rounded once.
void narrow(std::span<const double> from, std::byte* to, DType type) {
  if (type == DType::float64) {
    std::memcpy(to, from.data(), from.size_bytes());
  } else {
    std::transform(from.begin(), from.end(), reinterpret_cast<float*>(to),
                   [](double value) { return static_cast<float>(value); });
  }
}

}  // namespace

PolicyCall::PolicyCall(const AveragingPolicy& averaging, std::int64_t logical_workers,
                       std::int64_t max_count)
    : policy_(averaging),
      logical_workers_(logical_workers),
      wide_(static_cast<std::size_t>(2 + averaging.states()),
            std::vector<double>(static_cast<std::size_t>(max_count))) {}

void PolicyCall::ask(std::int64_t step, const std::string& parameter, const PolicyPiece& piece) {
  const auto wide = [&](std::size_t k) {
    return std::span(wide_[k]).first(static_cast<std::size_t>(piece.count));
  };
  AveragingRound round{.values = wide(0),
                       .before = {},
                       .logical_workers = logical_workers_,
                       .step = step,
                       .states = {}};
  widen(piece.values, piece.type, wide(0));
  if (piece.before != nullptr) {
    widen(piece.before, piece.type, wide(1));
    round.before = wide(1);
  }
  for (std::size_t k = 0; k < piece.states.size(); ++k) {
    widen(piece.states[k], piece.type, wide(2 + k));
    round.states.push_back(wide(2 + k));
  }
  try {
    policy_.combine(round);
  } catch (const std::exception& error) {
    throw Mismatch(
        fmt::format("averaging {}, parameter \"{}\": {}", policy_.name(), parameter, error.what()));
  }
  narrow(wide(0), piece.values, piece.type);
  if (!std::isfinite(largest_magnitude(piece.values, piece.type, piece.count))) {
    throw Mismatch(
        fmt::format("averaging {}, parameter \"{}\": what its copies become is not finite",
                    policy_.name(), parameter));
  }
  if (piece.before != nullptr) narrow(wide(0), piece.before, piece.type);
  for (std::size_t k = 0; k < piece.states.size(); ++k) {
    narrow(wide(2 + k), piece.states[k], piece.type);
  }
}

}  // namespace tutti
