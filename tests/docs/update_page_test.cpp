// What docs/update.md calls the members of options is what they are called.

#include <gmock/gmock.h>

#include <regex>

#include "docs/pages.h"

namespace tutti {
namespace {

// findings-3: D2
TEST(UpdatePage, NamesTheMembersOfALossScale) {
  const std::string header = text_of(source_folder() / "include/tutti/loss_scale.h");
  const auto begin = header.find("struct LossScale {");
  ASSERT_NE(begin, std::string::npos);
  const std::string members = header.substr(begin, header.find("};", begin) - begin);
  const std::string page = text_of(source_folder() / "docs/update.md");
  int count = 0;
  const std::regex member("\n  (?:double|std::int64_t) (\\w+) = ");
  for (std::sregex_iterator match(members.begin(), members.end(), member), end; match != end;
       ++match, ++count)
    EXPECT_THAT(page, testing::HasSubstr("`" + (*match)[1].str() + "`"));
  EXPECT_GE(count, 4);
}

}  // namespace
}  // namespace tutti
