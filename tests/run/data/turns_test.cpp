#include "run/data/turns.h"

#include <gmock/gmock.h>

#include <string_view>

namespace tutti {
namespace {

Turns of(std::string_view models) {
  Turns turns;
  for (const char model : models) turns.note(static_cast<std::uint64_t>(model));
  return turns;
}

/// The letter that is next; '?' where nothing is known.
char next_of(std::string_view models) {
  const auto next = of(models).next();
  return next ? static_cast<char>(*next) : '?';
}

TEST(TurnsOfARun, AreKnownOnceARoundHasComeTwice) {
  EXPECT_EQ(next_of("dgdg"), 'd');
  EXPECT_EQ(next_of("dgdgd"), 'g');
  EXPECT_EQ(next_of("dddgdddg"), 'd');
  EXPECT_EQ(next_of("dddgdddgdd"), 'd');
  EXPECT_EQ(next_of("dddgdddgddd"), 'g');
  EXPECT_EQ(next_of("abcabca"), 'b');
  EXPECT_EQ(of("abcabca").round(), 3U);
}

TEST(TurnsOfARun, AreUnknownWithoutRounds) {
  for (const auto* const models :
       {"", "d", "dd", "dddddddd", "dg", "dgd", "dddgdd", "dgdd", "ddgdgd", "abcab"}) {
    EXPECT_EQ(next_of(models), '?') << models;
  }
}

// A pattern that has changed counts for as long as it is remembered.
TEST(TurnsOfARun, ForgetWhatIsLongOver) {
  std::string models = "dddddddd";
  for (std::size_t rounds = 0; rounds < Turns::kMost / 2 - 1; ++rounds) models += "dg";
  EXPECT_EQ(next_of(models), '?');
  models += "dg";
  EXPECT_EQ(next_of(models), 'd');
  const auto turns = of(models);
  EXPECT_EQ(turns.latest().size(), Turns::kMost);
  EXPECT_EQ(Turns(turns.latest()).next(), turns.next());
}

}  // namespace
}  // namespace tutti
