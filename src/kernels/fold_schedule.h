#pragma once

// A fold program in the pieces that have a kernel: whole canonical subtrees over neighbouring
// sources, which are folded in registers, and combinations of two values on the stack.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/fold_program.h"

namespace tutti {

/// Sources, and destinations, of one fold.
inline constexpr std::size_t kMaxSources = 64;

class FoldSchedule {
 public:
  /// Marks the combination of the two topmost values. Every other piece is the number of sources
  /// (1, 2, 3, 4 or 8) whose subtree it pushes.
  static constexpr std::uint8_t kCombine = 0;

  /// `widest` bounds the subtrees taken as one piece.
  FoldSchedule(const FoldProgram& program, std::size_t widest);

  std::span<const std::uint8_t> pieces() const { return {pieces_.data(), count_}; }
  /// Largest number of values on the stack.
  std::size_t depth() const { return depth_; }

 private:
  std::array<std::uint8_t, 2 * kMaxSources> pieces_{};
  std::size_t count_ = 0;
  std::size_t depth_ = 0;
};

}  // namespace tutti
