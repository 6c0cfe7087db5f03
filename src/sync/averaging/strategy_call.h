#pragma once

// Asks a strategy what becomes of a piece of a parameter, from values of the parameter's type.
//
// Threads: one. Failure: Mismatch, with the strategy's name and the parameter's, where combine()
// throws, or leaves what is not finite.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/dtype.h"
#include "tutti/strategy.h"

namespace tutti {

/// Some elements, all float32 or all float64.
struct StrategyPiece {
  DType type = DType::float32;
  std::int64_t count = 0;
  std::byte* values = nullptr;  ///< the mean of all copies; becomes what they all become
  std::byte* before = nullptr;  ///< null where the strategy has no states; becomes the same
  std::vector<std::byte*> states = {};
};

class StrategyCall {
 public:
  /// For pieces of at most so many elements. Keeps a reference.
  StrategyCall(const Strategy& strategy, std::int64_t logical_workers, std::int64_t most);

  void ask(const std::string& parameter, const StrategyPiece& piece);

 private:
  const Strategy& strategy_;
  std::int64_t logical_workers_;
  std::vector<std::vector<double>> wide_;  ///< values, before, states
};

}  // namespace tutti
