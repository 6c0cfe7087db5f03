#pragma once

// The kernels of all rules: the coefficients of an update as values, and the one loop that applies
// them. Each rule's arithmetic is a template of a header of its own (<rule>_formula-inl.h).
//
// Threads: pure functions on disjoint memory. Failure: none.

#include <variant>

#include "kernels/update.h"

namespace tutti {

struct SgdNumbers {
  double rate;      ///< η
  double momentum;  ///< μ; 0: there is none, and no state
  double fresh;     ///< 1 − τ
  double decay;     ///< λ; 0: no decay at all, even of infinities
  double shrink;    ///< κ; the same
  bool nesterov;
  bool starts;  ///< the first time: v is not read
};

struct AdamNumbers {
  double beta1;
  double beta2;
  double epsilon;
  double rate;    ///< η/(1 − β1^t)
  double root;    ///< √(1 − β2^t)
  double decay;   ///< λ; 0: no decay at all, even of infinities
  double shrink;  ///< κ; the same
  bool amsgrad;
};

struct AdagradNumbers {
  double rate;  ///< η/(1 + (t − 1)·δ)
  double epsilon;
  double decay;  ///< λ; 0: no decay at all, even of infinities
};

struct RmsPropNumbers {
  double rate;  ///< η
  double alpha;
  double epsilon;
  double decay;     ///< λ; 0: no decay at all, even of infinities
  double momentum;  ///< μ; 0: there is none, and no state of it
  bool centered;
};

struct LionNumbers {
  double rate;  ///< η
  double beta1;
  double beta2;
  double shrink;  ///< κ; 0: no decay at all, even of infinities
};

using RuleNumbers =
    std::variant<SgdNumbers, AdamNumbers, AdagradNumbers, RmsPropNumbers, LionNumbers>;

/// The update by these numbers. Its arithmetic is in the target's type, to which they are rounded
/// once.
UpdateKernel kernel_of(const RuleNumbers& by);

}  // namespace tutti
