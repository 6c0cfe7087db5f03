#include "apps/tutti/text/line_assembler.h"

#include <gmock/gmock.h>

namespace tutti::command {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LineAssembler, GivesLinesOnlyWhenTheyAreWhole) {
  LineAssembler assembler;
  EXPECT_THAT(assembler.feed("fir"), IsEmpty());
  EXPECT_THAT(assembler.feed("st\nsecond\nthi"), ElementsAre("first", "second"));
  EXPECT_THAT(assembler.feed("\n\n"), ElementsAre("thi", ""));
  EXPECT_THAT(assembler.finish(), IsEmpty());
}

TEST(LineAssembler, GivesTheUnfinishedLineAtTheEnd) {
  LineAssembler assembler;
  assembler.feed("done\nhalf");
  EXPECT_THAT(assembler.finish(), ElementsAre("half"));
  EXPECT_THAT(assembler.finish(), IsEmpty());
}

TEST(LineAssembler, CutsDoNotChangeLines) {
  const std::string text = "a\r\nb\rc\n\nd\r\r\ne\rf";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    LineAssembler assembler;
    auto lines = assembler.feed(text.substr(0, cut));
    for (auto& line : assembler.feed(text.substr(cut))) lines.push_back(line);
    for (auto& line : assembler.finish()) lines.push_back(line);
    EXPECT_THAT(lines, ElementsAre("a", "c", "", "d", "f")) << "cut at " << cut;
  }
}

TEST(LineAssembler, CarriageReturnStartsTheLineAnew) {
  LineAssembler assembler;
  EXPECT_FALSE(assembler.rewrites());
  assembler.feed("step 1\r");
  EXPECT_TRUE(assembler.rewrites());
  EXPECT_EQ(assembler.unfinished(), "step 1");
  assembler.feed("step 2");
  EXPECT_TRUE(assembler.rewrites());
  EXPECT_EQ(assembler.unfinished(), "step 2");
  EXPECT_THAT(assembler.feed("\nplain"), ElementsAre("step 2"));
  EXPECT_FALSE(assembler.rewrites());
}

TEST(LineAssembler, EndlessLineIsHandedOnInPieces) {
  LineAssembler assembler;
  const auto lines = assembler.feed(std::string(2 * kLongestLine + 3, 'x') + "\n");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].size(), kLongestLine);
  EXPECT_EQ(lines[1].size(), kLongestLine);
  EXPECT_EQ(lines[2], "xxx");
}

}  // namespace
}  // namespace tutti::command
