#pragma once

// The part of fold that is compiled once per instruction set: canonical trees over few sources, in
// registers. fold.cpp puts larger programs together from them.

#include <array>
#include <cstddef>
#include <span>

#include "tutti/dtype.h"

namespace tutti {

/// A vector is at most this long.
inline constexpr std::size_t kMaxVectorBytes = 256;

struct FoldKernels {
  /// Every destination = tree over the sources / divisor. `count` is a multiple of `lanes`.
  using Kernel = void (*)(const void* const* sources, std::span<void* const> destinations,
                          std::size_t count, double divisor);
  /// Kernels by number of sources; null where there is none.
  using BySources = std::array<Kernel, 9>;

  std::size_t lanes = 0;        ///< elements of a vector of the computed type
  std::size_t value_size = 0;   ///< bytes of the computed type
  std::size_t widest = 1;       ///< largest number of sources that has a kernel
  BySources source_to_value{};  ///< sources to intermediate values of the computed type
  BySources source_to_result{};
  Kernel value_to_value = nullptr;  ///< two intermediate values
  Kernel value_to_result = nullptr;
  bool sources_are_values = false;  ///< a source needs no conversion to be combined
};

/// Returns the kernels of the instruction set in use. The caller has checked that fold() allows the
/// combination.
FoldKernels fold_kernels(DType source_type, DType result_type, Reduction reduction);

}  // namespace tutti
