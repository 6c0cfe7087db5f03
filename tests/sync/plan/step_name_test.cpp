#include "sync/plan/step_name.h"

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

TEST(StepName, IsReadBackAsItWasWritten) {
  EXPECT_EQ(step_name(3, "model"), "step 3 of \"model\"");
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{12}, INT64_MAX}) {
    for (const char* trained : {"model", "", "\"", "step 3 of \"model\""}) {
      const auto name = step_name_of(step_name(number, trained));
      ASSERT_TRUE(name) << trained;
      EXPECT_EQ(name->number, number);
      EXPECT_EQ(name->trained, trained);
    }
  }
}

TEST(StepName, AnyOtherTextIsNone) {
  for (const char* text :
       {"", "step", "step 3", "step 3 of \"", "step 3 of \"model", "step x of \"m\"",
        "a step 3 of \"model\"", "step 9223372036854775808 of \"model\""}) {
    EXPECT_FALSE(step_name_of(text)) << text;
  }
}

}  // namespace
}  // namespace tutti::test
