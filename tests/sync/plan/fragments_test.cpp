#include "sync/plan/fragments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace tutti::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::SizeIs;

using Sizes = std::vector<std::size_t>;

std::size_t sum_of(const Sizes& bytes, std::size_t begin, std::size_t end) {
  return std::accumulate(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                         bytes.begin() + static_cast<std::ptrdiff_t>(end), std::size_t{0});
}

/// The least that the largest of so many groups of bytes[begin …] can have, by trying all.
std::size_t least_of(const Sizes& bytes, std::size_t begin, std::size_t groups) {
  if (groups == 1) return sum_of(bytes, begin, bytes.size());
  auto least = std::numeric_limits<std::size_t>::max();
  for (auto end = begin + 1; end + groups - 1 <= bytes.size(); ++end) {
    least = std::min(least, std::max(sum_of(bytes, begin, end), least_of(bytes, end, groups - 1)));
  }
  return least;
}

// promise: averaging.h#fragments
TEST(Fragments, AreNeighboursOfWhichTheLargestIsAsSmallAsCanBe) {
  EXPECT_THAT(fragment_counts(Sizes{4, 4, 4, 4}, 2), ElementsAre(2, 2));
  EXPECT_THAT(fragment_counts(Sizes{1, 1, 1, 9}, 2), ElementsAre(3, 1));
  EXPECT_THAT(fragment_counts(Sizes{9, 1, 1, 1}, 3), ElementsAre(1, 2, 1));
  EXPECT_THAT(fragment_counts(Sizes{0, 0, 7}, 3), ElementsAre(1, 1, 1)) << "none is empty";
  EXPECT_THAT(fragment_counts(Sizes{3, 5}, 1), ElementsAre(2));
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    Sizes bytes(1 + random() % 9);
    for (auto& one : bytes) one = random() % 8 == 0 ? 0 : random() % 100;
    const auto fragments = 1 + random() % bytes.size();
    const auto counts = fragment_counts(bytes, fragments);
    ASSERT_THAT(counts, SizeIs(fragments));
    ASSERT_THAT(counts, Each(Ge(1u)));
    std::size_t begin = 0;
    std::size_t largest = 0;
    for (const auto count : counts) {
      largest = std::max(largest, sum_of(bytes, begin, begin + count));
      begin += count;
    }
    ASSERT_EQ(begin, bytes.size());
    EXPECT_EQ(largest, least_of(bytes, 0, fragments));
    EXPECT_LE(largest,
              sum_of(bytes, 0, bytes.size()) / fragments + *std::ranges::max_element(bytes));
  }
}

}  // namespace
}  // namespace tutti::test
