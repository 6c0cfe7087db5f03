#pragma once

// Optimizer updates of a run of elements, with SIMD. The bits depend on the values alone: every
// operation is one IEEE operation per element in the type of the parameter, never contracted, in
// the order of the formulas below. Coefficients are computed in float64 and rounded once. (Of two
// NaN operands it is left open whose payload is kept.)
//
// Threads: pure functions on disjoint memory. Failure: none; arguments are checked by callers
// (TUTTI_CHECK on impossible combinations).

#include <cstdint>
#include <variant>

#include "tutti/dtype.h"

namespace tutti {

/// Where an update reads and writes. All of `dtype`, which is float32 or float64. The gradient that
/// the rules speak of is `gradient_scale`·gradient, then kept within ±`clip_value`; NaN stays NaN.
struct UpdateTarget {
  DType dtype = DType::float32;
  const void* gradient = nullptr;
  void* parameter = nullptr;
  void* first = nullptr;   ///< momentum, first moment, or sum of squares
  void* second = nullptr;  ///< second moment
  std::int64_t count = 0;
  double gradient_scale = 1;  ///< clipping by norm, loss scale
  double clip_value = 0;      ///< 0: no bound
};

/// Stochastic gradient descent, as torch.optim.SGD documents it (Sutskever et al. 2013 with the
/// learning rate outside the momentum):
///   p ← p·(1 − κ)        g ← g + λ·p        v ← μ·v + (1 − τ)·g, or v ← g the first time
///   d = g + μ·v (Nesterov), v, or g without momentum        p ← p − η·d
/// κ = 0 is torch's; otherwise SGDW (Loshchilov and Hutter 2019, algorithm 1).
struct SgdRule {
  double learning_rate = 0;  ///< η
  double momentum = 0;       ///< μ; 0: `first` is not used
  double dampening = 0;      ///< τ
  double weight_decay = 0;   ///< λ; 0: no decay at all, even of infinities
  double shrink = 0;         ///< κ; the same
  bool nesterov = false;
  bool starts = false;  ///< first time that this parameter is updated: `first` is not read
};

/// Adam (Kingma and Ba 2015, algorithm 1) with L2 decay, or AdamW (Loshchilov and Hutter 2019,
/// algorithm 2; κ = η·λ is libtorch's form):
///   p ← p·(1 − κ) (AdamW)        g ← g + λ·p (Adam)
///   m ← β1·m + (1 − β1)·g        v ← β2·v + ((1 − β2)·g)·g
///   p ← p − ((η/(1 − β1^t))·m) / (√v/√(1 − β2^t) + ε)
struct AdamRule {
  double learning_rate = 0;  ///< η
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  ///< λ; 0: no decay at all, even of infinities
  double shrink = 0;        ///< κ; the same
  std::int64_t step = 1;    ///< t ≥ 1: updates of this parameter, this one included
};

/// Adagrad (Duchi, Hazan and Singer 2011) in torch.optim's form, with L2 decay:
///   g ← g + λ·p        s ← s + g·g        p ← p − ((η/(1 + (t − 1)·δ))·g) / (√s + ε)
struct AdagradRule {
  double learning_rate = 0;  ///< η
  double rate_decay = 0;     ///< δ
  double epsilon = 1e-10;
  double weight_decay = 0;  ///< λ; 0: no decay at all, even of infinities
  std::int64_t step = 1;    ///< t ≥ 1: updates of this parameter, this one included
};

using UpdateRule = std::variant<SgdRule, AdamRule, AdagradRule>;

void update(const UpdateRule& rule, const UpdateTarget& target);

}  // namespace tutti
