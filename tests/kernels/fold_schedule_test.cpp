#include "kernels/fold_schedule.h"

#include <gmock/gmock.h>

#include <vector>

namespace tutti {
namespace {

using testing::ElementsAre;
constexpr auto kCombine = FoldSchedule::kCombine;

auto pieces(const FoldProgram& program, std::size_t widest = 8) {
  const FoldSchedule schedule(program, widest);
  const auto span = schedule.pieces();
  return std::vector<int>(span.begin(), span.end());
}

TEST(FoldSchedule, TakesTheWidestSubtrees) {
  EXPECT_THAT(pieces(FoldProgram::canonical(1)), ElementsAre(1));
  EXPECT_THAT(pieces(FoldProgram::canonical(2)), ElementsAre(2));
  EXPECT_THAT(pieces(FoldProgram::canonical(3)), ElementsAre(3));
  EXPECT_THAT(pieces(FoldProgram::canonical(4)), ElementsAre(4));
  EXPECT_THAT(pieces(FoldProgram::canonical(5)), ElementsAre(4, 1, kCombine));
  EXPECT_THAT(pieces(FoldProgram::canonical(7)), ElementsAre(4, 3, kCombine));
  EXPECT_THAT(pieces(FoldProgram::canonical(8)), ElementsAre(8));
  EXPECT_THAT(pieces(FoldProgram::canonical(22)),
              ElementsAre(8, 8, kCombine, 4, 2, kCombine, kCombine));
  EXPECT_THAT(pieces(FoldProgram::canonical(3), 1), ElementsAre(1, 1, kCombine, 1, kCombine));
}

TEST(FoldSchedule, LeavesOtherShapesAlone) {
  // x + (y + z): three sources, but not the canonical three.
  const std::vector<Block> blocks = {{1, 1}, {2, 1}, {3, 1}};
  EXPECT_THAT(pieces(FoldProgram::of_blocks(blocks, 4)), ElementsAre(1, 2, kCombine));
}

TEST(FoldSchedule, DepthIsThatOfItsPieces) {
  EXPECT_EQ(FoldSchedule(FoldProgram::canonical(8), 8).depth(), 1U);
  EXPECT_EQ(FoldSchedule(FoldProgram::canonical(8), 1).depth(), 4U);
  EXPECT_EQ(FoldSchedule(FoldProgram::canonical(64), 8).depth(), 4U);
  // The last piece is not where the stack is highest.
  EXPECT_EQ(FoldSchedule(FoldProgram::canonical(40), 8).depth(), 3U);
}

}  // namespace
}  // namespace tutti
