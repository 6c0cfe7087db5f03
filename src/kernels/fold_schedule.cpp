#include "kernels/fold_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace tutti {
namespace {

using Step = FoldProgram::Step;

bool starts_with(std::span<const Step> steps, std::span<const Step> prefix) {
  return steps.size() >= prefix.size() && std::ranges::equal(steps.first(prefix.size()), prefix);
}

/// Widest subtree that has a kernel and with whose steps `steps` begins.
std::size_t subtree_at(std::span<const Step> steps, std::size_t widest) {
  using enum FoldProgram::Step;
  static constexpr Step kEight[] = {push, push,    combine, push, push,    combine, combine, push,
                                    push, combine, push,    push, combine, combine, combine};
  static constexpr Step kThree[] = {push, push, combine, push, combine};
  // Postfix: the tree over 8 begins with that over 4, which begins with that over 2.
  for (const std::size_t leaves : {8, 4, 2}) {
    const auto whole = std::span(kEight).first(2 * leaves - 1);
    if (leaves <= widest && starts_with(steps, whole)) return leaves;
    if (leaves == 4 && 3 <= widest && starts_with(steps, kThree)) return 3;
  }
  return 1;
}

}  // namespace

FoldSchedule::FoldSchedule(const FoldProgram& program, std::size_t widest) {
  TUTTI_CHECK(static_cast<std::size_t>(program.sources()) <= kMaxSources,
              "fold of {} sources, at most {}", program.sources(), kMaxSources);
  std::size_t height = 0;
  for (auto steps = program.steps(); !steps.empty();) {
    std::size_t taken = 1;
    if (steps.front() == Step::combine) {
      pieces_[count_++] = kCombine;
      --height;
    } else {
      const std::size_t leaves = subtree_at(steps, widest);
      pieces_[count_++] = static_cast<std::uint8_t>(leaves);
      taken = 2 * leaves - 1;
      depth_ = std::max(depth_, ++height);
    }
    steps = steps.subspan(taken);
  }
}

}  // namespace tutti
