#include "job/wire/rank_set.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Around the edges of words.
const RankSet kSome = {0, 5, 63, 64, 65, 127, 128, 1023};

TEST(RankSet, has_what_was_put_into_it) {
  EXPECT_THAT(kSome.ranks(), ElementsAre(0, 5, 63, 64, 65, 127, 128, 1023));
  EXPECT_EQ(kSome.size(), 8);
  for (int rank = 0; rank < kMaxWorkers; ++rank) {
    EXPECT_EQ(kSome.contains(rank), std::ranges::count(kSome.ranks(), rank) == 1) << rank;
  }
  EXPECT_EQ(RankSet(kSome.words()), kSome);
  EXPECT_EQ(RankSet::of(std::vector<int>{1023, 0, 5, 63, 64, 65, 127, 128, 5}), kSome);
  RankSet grown;
  EXPECT_TRUE(grown.empty());
  EXPECT_THAT(grown.ranks(), IsEmpty());
  grown.insert(1023);
  EXPECT_FALSE(grown.empty());
  EXPECT_EQ(grown.first(), 1023);
}

TEST(RankSet, the_first_is_the_lowest_in_any_word) {
  for (const int first : {0, 1, 63, 64, 640, 1022}) {
    EXPECT_EQ((RankSet{1023, first}.first()), first);
  }
  EXPECT_THROW(static_cast<void>(RankSet().first()), InternalError);
}

TEST(RankSet, below_are_all_smaller_ones) {
  for (const int size : {0, 1, 2, 63, 64, 65, 1000, 1024}) {
    const auto all = RankSet::below(size);
    EXPECT_EQ(all.size(), size);
    if (size > 0) {
      EXPECT_TRUE(all.contains(size - 1));
    }
    if (size < kMaxWorkers) {
      EXPECT_FALSE(all.contains(size));
    }
  }
}

TEST(RankSet, is_combined_rank_by_rank) {
  const RankSet other = {5, 6, 64, 1000, 1023};
  EXPECT_EQ(kSome | other, (RankSet{0, 5, 6, 63, 64, 65, 127, 128, 1000, 1023}));
  EXPECT_EQ(kSome & other, (RankSet{5, 64, 1023}));
  EXPECT_EQ(kSome - other, (RankSet{0, 63, 65, 127, 128}));
  EXPECT_EQ(other - other, RankSet());
}

TEST(RankSet, a_rank_that_no_job_has_is_refused) {
  RankSet set;
  for (const int rank : {-1, kMaxWorkers}) {
    EXPECT_THROW(set.insert(rank), InternalError);
    EXPECT_THROW(static_cast<void>(set.contains(rank)), InternalError);
  }
}

TEST(RankSet, reads_as_a_sentence) {
  EXPECT_EQ(ranks_text({}), "nobody");
  EXPECT_EQ(ranks_text({64}), "rank 64");
  EXPECT_EQ(ranks_text({1023, 2}), "ranks 2 1023");
  EXPECT_EQ(ranks_text(RankSet::below(5)), "ranks 0 1 2 3 4");
  EXPECT_EQ(ranks_text(RankSet::below(16)), "ranks 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15");
  EXPECT_EQ(ranks_text(RankSet::below(17)), "ranks 0-16");
  EXPECT_EQ(ranks_text((RankSet::below(32) - RankSet{3, 6}) | RankSet{40, 50, 51, 1023}),
            "ranks 0-2 4 5 7-31 40 50 51 1023");
  EXPECT_EQ(rank_list(RankSet::below(1024)), "0-1023");
  EXPECT_EQ(ranks_text({3}, "has", "have"), "rank 3 has");
  EXPECT_EQ(ranks_text({3, 70}, "has", "have"), "ranks 3 70 have");
}

}  // namespace
}  // namespace tutti::test
