#include "base/number.h"

#include <cstdint>
#include <string_view>

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

TEST(Number, IsTheWholeText) {
  EXPECT_EQ(parse_number<int>("-3"), -3);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_number<double>("1e-3"), 0.001);
  EXPECT_EQ(parse_number<double>("0.5"), 0.5);
  for (const auto* text : {"", " 1", "1 ", "+1", "1x", "x", "0x1"}) {
    EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
    EXPECT_EQ(parse_number<double>(text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_number<int>("0.5"), std::nullopt);
  EXPECT_EQ(parse_number<int>(std::string_view()), std::nullopt);
}

TEST(Number, ThatTheTypeCannotHoldIsNone) {
  EXPECT_EQ(parse_number<int>("2147483647"), INT32_MAX);
  EXPECT_EQ(parse_number<int>("2147483648"), std::nullopt);
  EXPECT_EQ(parse_number<std::uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_number<double>("1e999"), std::nullopt);
}

TEST(Number, IsTakenOffTheBeginOfAText) {
  std::string_view text = "12 of 30";
  EXPECT_EQ(take_number<int>(text), 12);
  EXPECT_EQ(text, " of 30");
  EXPECT_EQ(take_number<int>(text), std::nullopt);
  EXPECT_EQ(text, " of 30");
  text = "99999999999 and more";
  EXPECT_EQ(take_number<int>(text), std::nullopt);
  EXPECT_EQ(text, "99999999999 and more") << "a number that the type cannot hold stays";
  text = "7";
  EXPECT_EQ(take_number<int>(text), 7);
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace tutti::test
