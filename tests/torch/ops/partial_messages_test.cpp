// What the compiler says where a Partial is used as a tensor.

#include <gmock/gmock.h>

#include <string>

#include "torch/compiler_messages.h"

namespace tutti::test::partial_messages {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string messages(const std::string& statements) {
  return messages_about("partial.h",
                        "using Sum = tutti::Partial<tutti::Whole::sum>; " + statements);
}

TEST(PartialMessages, AreNoneWhereAllIsWell) {
  EXPECT_THAT(messages("auto one = tutti::partial_sum(group, x) + 2 * Sum(group, x); "
                       "x = std::move(one).reduce(); "
                       "x = tutti::partial_mean(group, x, 3).reduce();"),
              IsEmpty());
}

// promise: partial.h#Partial
TEST(PartialMessages, NameTheWayOutForATensor) {
  for (const char* const mistake : {"Sum(group, x) + x", "x + Sum(group, x)", "Sum(group, x) * x",
                                    "x * Sum(group, x)", "tutti::partial_mean(group, x, 1) + x"}) {
    EXPECT_THAT(messages(std::string("x = ") + mistake + ";"), HasSubstr("ReduceThePartialFirst"))
        << mistake;
  }
}

// promise: partial.h#Partial
TEST(PartialMessages, NameTheWayOutForOneThatIsNotMoved) {
  for (const char* const mistake : {"sum.reduce()", "sum.reduce_scatter()"}) {
    EXPECT_THAT(messages(std::string("Sum sum(group, x); x = ") + mistake + ";"),
                HasSubstr("ReduceWithStdMoveOfThePartial"))
        << mistake;
  }
}

TEST(PartialMessages, NameCombineForWhatIsNoSum) {
  EXPECT_THAT(messages("auto both = tutti::partial_mean(group, x, 1) + "
                       "tutti::partial_mean(group, x, 1);"),
              HasSubstr("CombineThePartials"));
}

}  // namespace
}  // namespace tutti::test::partial_messages
