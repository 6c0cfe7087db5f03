#pragma once

// Optimizer updates of a run of elements, with SIMD. The bits depend on the values alone: every
// operation is one IEEE operation per element in the type of the parameter, never contracted, in
// the order of the rule's formulas (rules/). Coefficients are computed in float64 and rounded once.
// (Of two NaN operands it is left open whose payload is kept.)
//
// Threads: pure functions on disjoint memory. Failure: none; arguments are checked by callers
// (TUTTI_CHECK on impossible combinations).

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "tutti/dtype.h"

namespace tutti {

/// Tensors of state that a rule with a kernel keeps of a parameter, at most.
inline constexpr std::size_t kMaxStates = 4;

/// The memory that an update reads and writes, all of `dtype`, which is float32 or float64. The
/// rules' gradient is `gradient_scale`·gradient, then clamped to ±`clip_value`; NaN stays NaN.
struct UpdateTarget {
  DType dtype = DType::float32;
  const void* gradient = nullptr;
  void* parameter = nullptr;
  std::array<void*, kMaxStates> states = {};  ///< in the order of the rule's states
  std::int64_t count = 0;
  double gradient_scale = 1;  ///< clipping by norm, loss scale
  double clip_value = 0;      ///< 0: no bound
};

using UpdateKernel = std::function<void(const UpdateTarget&)>;

/// One update of one parameter, its coefficients computed: for any number of runs of its elements.
struct PreparedUpdate {
  std::size_t states = 0;  ///< how many tensors of state it uses
  UpdateKernel run;
};

void update(const PreparedUpdate& by, const UpdateTarget& target);

}  // namespace tutti
