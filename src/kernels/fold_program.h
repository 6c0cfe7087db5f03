#pragma once

// The canonical tree as a program: which sources are added with which, in what order.
//
// A range of n leaves splits at the largest power of two below n. A block [begin, begin + size)
// with size a power of two and begin a multiple of size is a node of that tree whatever n is, which
// is why a worker may fold aligned neighbours without knowing n (docs/numerics.md has the proof).
// Absent blocks vanish: absent + x = x, bit for bit.
//
// Pure values; property-tested in tests/kernels.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tutti {

/// Leaves [begin, begin + size): size is a power of two and divides begin.
struct Block {
  std::int64_t begin = 0;
  std::int64_t size = 1;
  friend bool operator==(const Block&, const Block&) = default;
};

/// The leaves left of where a range of `leaves` ≥ 2 splits: the largest power of two below it.
std::int64_t left_leaves(std::int64_t leaves);

/// Postfix program over k sources in order: `push` takes the next source, `combine` folds the two
/// topmost. A value on top of the stack is left.
class FoldProgram {
 public:
  enum class Step : std::uint8_t { push, combine };

  /// The tree over n single leaves, n ≥ 1.
  static FoldProgram canonical(int n);
  /// The tree over `total` leaves of which only the given blocks are present, ascending and
  /// disjoint. At least one.
  static FoldProgram of_blocks(std::span<const Block> present, std::int64_t total);

  int sources() const { return sources_; }
  /// Largest number of values on the stack.
  int depth() const { return depth_; }
  std::span<const Step> steps() const { return steps_; }
  friend bool operator==(const FoldProgram&, const FoldProgram&) = default;

 private:
  explicit FoldProgram(std::vector<Step> steps);
  std::vector<Step> steps_;
  int sources_ = 0;
  int depth_ = 0;
};

/// The blocks into which a worker folds its contiguous range [begin, end): ascending, at most
/// 2·⌊log2(end)⌋ + 1 of them, each as large as alignment allows.
std::vector<Block> blocks_of_range(std::int64_t begin, std::int64_t end);

}  // namespace tutti
