#include "kernels/fold_program.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tutti {
namespace {

using Step = FoldProgram::Step;

/// Appends the program of the present blocks below the node [begin, begin + leaves).
void append_node(std::vector<Step>& steps, std::span<const Block> present, std::int64_t begin,
                 std::int64_t leaves) {
  if (present.size() == 1) {
    steps.push_back(Step::push);
    return;
  }
  const std::int64_t left = left_leaves(leaves);
  const std::int64_t middle = begin + left;
  const auto first_right = std::ranges::lower_bound(present, middle, {}, &Block::begin);
  const auto count = static_cast<std::size_t>(first_right - present.begin());
  if (count > 0) append_node(steps, present.first(count), begin, left);
  if (count < present.size()) {
    append_node(steps, present.subspan(count), middle, leaves - left);
    if (count > 0) steps.push_back(Step::combine);
  }
}

}  // namespace

std::int64_t left_leaves(std::int64_t leaves) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(leaves - 1)));
}

FoldProgram::FoldProgram(std::vector<Step> steps) : steps_(std::move(steps)) {
  int height = 0;
  for (const Step step : steps_) {
    if (step == Step::push) {
      ++sources_;
      depth_ = std::max(depth_, ++height);
    } else {
      --height;
    }
  }
}

FoldProgram FoldProgram::canonical(int n) {
  TUTTI_CHECK(n >= 1, "a tree over {} leaves", n);
  std::vector<Block> leaves(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) leaves[static_cast<std::size_t>(i)].begin = i;
  return of_blocks(leaves, n);
}

FoldProgram FoldProgram::of_blocks(std::span<const Block> present, std::int64_t total) {
  TUTTI_CHECK(!present.empty(), "no block is present");
  std::int64_t end = 0;
  for (const auto [begin, size] : present) {
    TUTTI_CHECK(
        size > 0 && std::has_single_bit(static_cast<std::uint64_t>(size)) && begin % size == 0,
        "[{}, {} + {}) is not an aligned block", begin, begin, size);
    TUTTI_CHECK(begin >= end && begin <= total - size,
                "block [{}, {} + {}) overlaps its predecessor or exceeds {} leaves", begin, begin,
                size, total);
    end = begin + size;
  }
  std::vector<Step> steps;
  steps.reserve(2 * present.size() - 1);
  append_node(steps, present, 0, total);
  return FoldProgram(std::move(steps));
}

std::vector<Block> blocks_of_range(std::int64_t begin, std::int64_t end) {
  TUTTI_CHECK(0 <= begin && begin <= end, "range [{}, {})", begin, end);
  std::vector<Block> blocks;
  while (begin < end) {
    const auto room =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end - begin)));
    const std::int64_t aligned = begin == 0 ? room : begin & -begin;
    blocks.push_back({begin, std::min(aligned, room)});
    begin += blocks.back().size;
  }
  return blocks;
}

}  // namespace tutti
