#pragma once

// What all workers decide of a step, each by itself, from the same published facts.

#include <optional>
#include <string>
#include <vector>

namespace tutti {

struct Verdict {
  std::string refusal;         ///< why the step is dropped; empty: it is applied
  bool finite = true;          ///< false: it is dropped for a gradient or sum that is not finite
  std::optional<double> norm;  ///< of the gradient, before clipping, where it had to be known
  bool folded = false;         ///< each owner's arena holds the folded gradient of what it owns
  std::vector<double> scales;  ///< per parameter, of the gradient: clipping; empty: all 1
};

}  // namespace tutti
