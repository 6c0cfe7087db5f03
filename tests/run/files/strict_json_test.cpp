#include "run/files/strict_json.h"

#include <gmock/gmock.h>

#include "support/text_of.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using Path = std::vector<std::string>;

std::vector<std::pair<Path, std::string>> values_of(const std::string& text,
                                                    const JsonLimits& limits = {}) {
  std::vector<std::pair<Path, std::string>> found;
  each_value(text, "t", limits,
             [&](std::span<const std::string> path, const nlohmann::json& value) {
               found.emplace_back(Path(path.begin(), path.end()), value.dump());
             });
  return found;
}

TEST(EachValue, ComesInTheOrderOfTheTextWithThePathThatLeadsThere) {
  EXPECT_THAT(
      values_of(R"({"z":1,"a":{"y":"2","b":{"x":null},"c":{}},"l":[3,{"m":4},[5],6],"z2":true})"),
      ElementsAre(Pair(Path{"z"}, "1"), Pair(Path{"a", "y"}, "\"2\""),
                  Pair(Path{"a", "b", "x"}, "null"), Pair(Path{"l", ""}, "3"),
                  Pair(Path{"l", "", "m"}, "4"), Pair(Path{"l", "", ""}, "5"),
                  Pair(Path{"l", ""}, "6"), Pair(Path{"z2"}, "true")));
  EXPECT_THAT(values_of("{}"), ElementsAre());
}

TEST(EachValue, RefusesWhatAnEnemyWrites) {
  const auto refusal = [](const std::string& text, const JsonLimits& limits = {}) {
    return text_of<Corrupt>([&] { values_of(text, limits); });
  };
  EXPECT_EQ(refusal(R"({"a":{"b":1,"b":2}})"), "t has \"b\" twice");
  EXPECT_EQ(refusal(R"({"a":{"b":{}}})", {.depth = 2}), "t nests objects and arrays too deeply");
  EXPECT_EQ(refusal(R"({"a":[1,2,3]})", {.array = 2}), "t has an array of more than 2 items");
  for (const char* item : {"[]", "{}", "[1]", R"({"b":1})"}) {
    const std::string three = std::string(item) + "," + item + "," + item;
    EXPECT_EQ(refusal(R"({"a":[)" + three + "]}", {.array = 2}),
              "t has an array of more than 2 items");
    EXPECT_EQ(refusal(R"({"a":[)" + three + "]}", {.array = 3}), "nothing was thrown");
  }
  EXPECT_EQ(refusal(R"({"a":[[1,2],[3,4]],"b":{"x":[],"y":[],"z":[]}})", {.array = 2}),
            "nothing was thrown");
  EXPECT_EQ(refusal("[1]"), "t is not a JSON object");
  EXPECT_EQ(refusal("1"), "t is not a JSON object");
  EXPECT_EQ(refusal(R"({"a":1e999})"), "t has a number that is too large");
  EXPECT_EQ(refusal(R"({"a":1)"), "t is not JSON: error at byte 7");
}

}  // namespace
}  // namespace tutti::test
