// What the compiler says of a segment that gives or takes what is no tensor.

#include <gmock/gmock.h>

#include <string>

#include "torch/compiler_messages.h"

namespace tutti::test::recompute_messages {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string messages(const std::string& statements) {
  return messages_about("recompute.h", "using torch::Tensor; " + statements);
}

TEST(RecomputeMessages, AreNoneWhereAllIsWell) {
  EXPECT_THAT(messages("const auto [y, z] = tutti::recompute("
                       "[](const Tensor& a, const Tensor& b) { return std::pair(a, b); }, x, x); "
                       "x = tutti::recompute({.name = \"block\"}, [](Tensor a) { return a; }, y);"),
              IsEmpty());
}

// promise: recompute.h#recompute
TEST(RecomputeMessages, SayWhatASegmentReturns) {
  for (const char* const result : {"3.5", "std::pair(x, 1)", "std::vector<double>()"}) {
    EXPECT_THAT(
        messages(std::string("tutti::recompute([&](const Tensor&) { return ") + result +
                 "; }, x);"),
        HasSubstr("the segment returns what is neither a tensor, nor a tuple or a vector of "
                  "tensors"))
        << result;
  }
}

// promise: recompute.h#recompute
TEST(RecomputeMessages, SayWhichInputsThereAre) {
  EXPECT_THAT(messages("tutti::recompute([](const Tensor& a, int) { return a; }, x, 2);"),
              HasSubstr("an input is no tensor; let a lambda capture it"));
}

}  // namespace
}  // namespace tutti::test::recompute_messages
