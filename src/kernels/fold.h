#pragma once

// Element-wise arithmetic with SIMD, chosen at run time (Highway). Every result depends on the
// values alone, never on alignment, length, position or instruction set: tails use the same
// operations as bodies. (Of two NaN operands it is left open whose payload is kept.)
//
// Arithmetic: float32 and float64 in their own type; float16 and bfloat16 in float32, rounded once
// to nearest-even at the end; integers wrap; boolean bytes are 0 or 1. Multiplications and
// additions are never contracted.
//
// Threads: pure functions on disjoint memory. Failure: none; arguments are checked by callers
// (TUTTI_CHECK on impossible combinations).

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/fold_program.h"
#include "tutti/dtype.h"

namespace tutti {

/// Combines `count` elements of the sources along the program, divides once, and stores the result
/// to every destination. A destination may be exactly one of the sources; other overlap is not
/// allowed. At most 64 sources and 64 destinations. Blocks of a few KiB are processed so that
/// intermediate values stay in the first-level cache; subtrees of 2, 3, 4 and 8 sources are summed
/// in registers. One source with divisor 1 is copied bit for bit.
struct Fold {
  const FoldProgram* program = nullptr;  ///< program->sources() == sources.size()
  Reduction reduction = Reduction::sum;  ///< mean is sum with divisor = number of sources
  DType source_type = DType::float32;    ///< float32 where result_type is a 16-bit float, or equal
  DType result_type = DType::float32;
  double divisor = 1.0;  ///< floats only; 1 leaves the bits alone (x / divisor)
  std::span<const void* const> sources = {};
  std::span<void* const> destinations = {};
  std::int64_t count = 0;
};
void fold(const Fold& work);

/// to[i] = weight · from[i]. `to_type` is `from_type`, or float32 for a 16-bit `from_type`.
/// weight 1 copies (or converts) bit for bit. Floats only unless weight is 1. `to` may be exactly
/// `from` where the types are equal. Ordinary stores: what is written is usually read again soon.
/// `largest`, where given, becomes the largest_magnitude of what is written; floats only.
void scale_into(void* to, DType to_type, const void* from, DType from_type, std::int64_t count,
                double weight, double* largest = nullptr);

/// to[i] = from[i], rounded once to nearest-even where `to_type` is narrower. Floats only.
void round_into(void* to, DType to_type, const void* from, DType from_type, std::int64_t count);

/// to[i] = to[i] + weight · from[i]; the product is rounded before the addition. Types as for
/// scale_into, floats only; 16 bits are computed in float32 and rounded once. `largest`, where
/// given, becomes the largest_magnitude of what is added: of weight · from, not of the sum.
void add_scaled(void* to, DType to_type, const void* from, DType from_type, std::int64_t count,
                double weight, double* largest = nullptr);

/// max |x|, with NaN above infinity above all else, so that it is finite where everything is. 0 of
/// nothing. Floats only.
double largest_magnitude(const void* data, DType dtype, std::int64_t count);

/// True if every byte is zero. Stops at the first that is not.
bool all_zero(const void* data, std::size_t bytes) noexcept;

/// Name of the instruction set in use: "AVX2", "AVX3", "NEON", …
const char* simd_target() noexcept;

}  // namespace tutti
