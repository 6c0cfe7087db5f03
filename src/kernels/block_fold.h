#pragma once

// One fold, resolved: checked, with its kernels and schedule chosen, for one or many runs of
// elements. Block by block, so that intermediate values stay in the first-level cache.

#include <cstddef>
#include <span>

#include "kernels/fold.h"
#include "kernels/fold_kernels.h"
#include "kernels/fold_schedule.h"

namespace tutti {

class BlockFold {
 public:
  /// Takes program, types and divisor from `work`, and keeps no pointer.
  explicit BlockFold(const Fold& work);

  /// True where a fold is a copy bit for bit.
  bool copies() const { return copies_; }

  /// Does the same as fold(): whole vectors in place, the rest with the same operations on a padded
  /// copy.
  void run(std::span<const void* const> sources, std::span<void* const> destinations,
           std::size_t count) const;

 private:
  /// `count` is a multiple of a vector, here and below.
  void run_vectors(std::span<const void* const> sources, std::span<void* const> destinations,
                   std::size_t count) const;
  /// Folds one block with a stack of pointers to sources and to `values`, whose slots are `block`
  /// elements apart.
  void run_block(const void* const* sources, std::span<void* const> to, std::size_t count,
                 std::byte* values, std::size_t block) const;
  void run_rest(std::span<const void* const> sources, std::span<void* const> destinations,
                std::size_t begin, std::size_t rest) const;
  /// Copies in blocks, so that one read of the source serves every destination.
  void copy(const void* source, std::span<void* const> destinations, std::size_t count) const;

  FoldKernels kernels_;
  FoldSchedule schedule_;
  double divisor_;
  std::size_t source_size_;
  std::size_t result_size_;
  bool copies_;
};

}  // namespace tutti
