#pragma once

// What the update loops read of a rule: computed once for many runs of elements of one parameter.

#include <variant>

#include "kernels/update.h"

namespace tutti {

struct AdamCoefficients {
  explicit AdamCoefficients(const AdamRule& rule);

  double beta1;
  double fresh1;  ///< 1 − β1
  double beta2;
  double fresh2;  ///< 1 − β2
  double epsilon;
  double rate;  ///< η/(1 − β1^t)
  double root;  ///< √(1 − β2^t)
  double decay;
  double kept;   ///< 1 − κ
  bool shrinks;  ///< decoupled decay
  bool adds;     ///< L2 decay
};

struct AdagradCoefficients {
  explicit AdagradCoefficients(const AdagradRule& rule);

  double rate;  ///< η/(1 + (t − 1)·δ)
  double epsilon;
  double decay;
  bool adds;  ///< L2 decay
};

/// A SGD rule is its coefficients.
using UpdateCoefficients = std::variant<SgdRule, AdamCoefficients, AdagradCoefficients>;

UpdateCoefficients coefficients_of(const UpdateRule& rule);
void update(const UpdateCoefficients& coefficients, const UpdateTarget& target);

}  // namespace tutti
