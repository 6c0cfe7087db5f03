// Every element has one owner, whatever the number of workers, and no tile has two.

#include "sync/plan/tile_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sync/gradient_oracle.h"

namespace tutti::test {
namespace {

TEST(TileShare, EveryElementHasOneOwnerAndATileIsNeverCut) {
  const std::vector<std::size_t> counts = {1, 0, 4095, 4096, 4097, 50'000, 63, 12'289};
  const auto plan = plan_of(counts);
  const std::vector<std::uint32_t> all = {0, 1, 2, 3, 5, 6, 7};  // some are left out
  for (const int workers : {1, 2, 3, 5, 8}) {
    std::vector<std::vector<int>> owners;
    for (const auto count : counts) owners.emplace_back(count);
    std::size_t most = 0;
    std::size_t total = 0;
    for (int r = 0; r < workers; ++r) {
      std::size_t mine = 0;
      for (const auto& range : tile_share(plan, all, r, workers)) {
        ASSERT_LT(range.begin, range.end);
        EXPECT_EQ(range.begin % kTile, 0) << "p" << range.parameter;
        const auto count = static_cast<std::int64_t>(counts[range.parameter]);
        EXPECT_TRUE(range.end == count || range.end % kTile == 0) << "p" << range.parameter;
        for (auto i = range.begin; i < range.end; ++i) {
          ++owners[range.parameter][static_cast<std::size_t>(i)];
        }
        mine += static_cast<std::size_t>(range.end - range.begin);
      }
      most = std::max(most, mine);
      total += mine;
    }
    for (std::size_t p = 0; p < counts.size(); ++p) {
      EXPECT_EQ(owners[p], std::vector<int>(counts[p], p == 4 ? 0 : 1)) << workers << " workers";
    }
    EXPECT_LE(most, total / static_cast<std::size_t>(workers) + 2 * kTile);
  }
}

TEST(TileShare, ARangeIsCutIntoTilesOfWhichTheLastMayBeShorter) {
  const auto tiles = tiles_of({3, kTile, 3 * kTile + 5});
  ASSERT_EQ(tiles.size(), 3u);
  EXPECT_EQ(tiles[0].begin, kTile);
  EXPECT_EQ(tiles[2].begin, 3 * kTile);
  EXPECT_EQ(tiles[2].end, 3 * kTile + 5);
  EXPECT_EQ(tiles[2].parameter, 3u);
  EXPECT_TRUE(tiles_of({0, 0, 0}).empty());
}

}  // namespace
}  // namespace tutti::test
