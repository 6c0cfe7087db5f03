#pragma once

// Asks an averaging policy what becomes of a piece of a parameter. Policies compute in float64; the
// piece is of the type in which the parameter is averaged.
//
// Threads: one. Failure: Mismatch, with the averaging policy's name and the parameter's, where
// combine() throws, or leaves a value that is not finite.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/averaging.h"
#include "tutti/dtype.h"

namespace tutti {

/// Some elements of a parameter, all float32 or all float64.
struct PolicyPiece {
  DType type = DType::float32;
  std::int64_t count = 0;
  std::byte* values = nullptr;  ///< the mean of all copies; becomes what they all become
  std::byte* before = nullptr;  ///< null where the averaging policy has no states; becomes the same
  std::vector<std::byte*> states = {};
};

class PolicyCall {
 public:
  /// A piece has at most `max_count` elements. Keeps a reference.
  PolicyCall(const AveragingPolicy& averaging, std::int64_t logical_workers,
             std::int64_t max_count);

  /// At the end of `step`: replaces the piece's values, what all copies were before, and the
  /// states.
  void ask(std::int64_t step, const std::string& parameter, const PolicyPiece& piece);

 private:
  const AveragingPolicy& policy_;
  std::int64_t logical_workers_;
  std::vector<std::vector<double>> wide_;  ///< in float64: values, before, states
};

}  // namespace tutti
