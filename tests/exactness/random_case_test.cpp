// The draws of random cases: the same on any machine, and known to docs/combinations.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exactness/random_case.h"

namespace tutti::test::exact {
namespace {

using ::testing::IsSubsetOf;

// A seed gives the same cases on any machine: these numbers must never change.
TEST(Choices, AreTheSameOnAnyMachine) {
  EXPECT_EQ(number_of(0, 0, 0, ""), 2330450545547178953u);
  EXPECT_EQ(number_of(7, 123, 0, "model"), 592537437378196645u);
  Choices choices(7, 123);
  EXPECT_EQ(choices.of("model", {"a", "b", "c", "d", "e"}), "a");
  EXPECT_EQ(choices.between("steps", 2, 1000), 9);
}

TEST(Choices, OneMoreMovesNoOther) {
  Choices few(1, 5);
  Choices more(1, 5);
  more.between("new", 0, 100);
  EXPECT_EQ(few.between("steps", 0, 1000000), more.between("steps", 0, 1000000));
  EXPECT_NE(Choices(1, 6).between("steps", 0, 1000000), few.number("steps"));
  EXPECT_NE(Choices(2, 5).between("steps", 0, 1000000), few.number("steps"));
}

TEST(Choices, FixedOnesAreTakenAndChecked) {
  Choices choices(1, 1, {{"clip", "norm"}, {"steps", "4"}, {"other", "x"}});
  EXPECT_EQ(choices.of("clip", {"none", "norm"}), "norm");
  EXPECT_EQ(choices.between("steps", 1, 5), 4);
  EXPECT_EQ(choices.text(), "clip=norm steps=4");
  EXPECT_THROW(choices.require_all_used(), std::invalid_argument);
  EXPECT_THROW(Choices(1, 1, {{"clip", "x"}}).of("clip", {"none"}), std::invalid_argument);
  EXPECT_THROW(Choices(1, 1, {{"steps", "6"}}).between("steps", 1, 5), std::invalid_argument);
}

TEST(RandomCase, EveryCaseIsWhole) {
  for (std::uint64_t number = 0; number < 500; ++number) {
    const auto one = draw_case(3, number);
    const auto stretches = stretches_of(one);
    std::int64_t at = 0;
    for (const auto& stretch : stretches) {
      EXPECT_EQ(stretch.begin, at);
      EXPECT_GE(stretch.end, at);
      EXPECT_TRUE(stretch.workers >= 1 && stretch.workers <= 8);
      EXPECT_FALSE(stretch.is_reference);
      at = stretch.end;
    }
    EXPECT_EQ(at, one.number("steps"));
    EXPECT_TRUE(stretches.size() > 1 || stretches.front().workers > 1) << one.text();
    EXPECT_LE(one.number("logical"), one.number("shards"));
  }
}

TEST(RandomCase, EveryFeatureIsNamedByThePageAndEachOfItsNamesIsDrawn) {
  const Refusals refusals(TUTTI_SOURCE "/docs/combinations.md");
  std::set<std::string> drawn;
  int refused = 0;
  for (std::uint64_t number = 0; number < 3000; ++number) {
    const auto one = draw_case(3, number);
    refused += !refusals.reason(one).empty();
    if (!one.is("front", "trainer")) continue;
    for (const auto& features : features_of(one)) drawn.insert(features.begin(), features.end());
  }
  EXPECT_EQ(drawn, refusals.names());
  EXPECT_GT(refused, 30);
  EXPECT_LT(refused, 600);
}

}  // namespace
}  // namespace tutti::test::exact
