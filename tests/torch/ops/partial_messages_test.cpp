// What the compiler says where a Partial is used as a tensor.

#include <gmock/gmock.h>

#include <cstdio>
#include <string>

namespace tutti::test::partial_messages {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The compiler's messages about these statements.
std::string messages_about(const std::string& statements) {
  const std::string command = std::string("printf '%s' '") +
                              "#include \"tutti/partial.h\"\n"
                              "using Sum = tutti::Partial<tutti::Whole::sum>;\n"
                              "void use(const tutti::Group& group, torch::Tensor x) { " +
                              statements + " }\n' | LC_ALL=C " + TUTTI_COMPILER +
                              " -std=c++20 -fsyntax-only -I" + TUTTI_SOURCE + "/include -I" +
                              TUTTI_SOURCE + "/tests/torch/ops/stand_in -x c++ - 2>&1";
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen() failed";
  char piece[4096];
  while (fgets(piece, sizeof piece, pipe) != nullptr) text += piece;
  pclose(pipe);
  return text;
}

TEST(PartialMessages, AreNoneWhereAllIsWell) {
  EXPECT_THAT(messages_about("auto one = tutti::partial_sum(group, x) + 2 * Sum(group, x); "
                             "x = std::move(one).reduce(); "
                             "x = tutti::partial_mean(group, x, 3).reduce();"),
              IsEmpty());
}

TEST(PartialMessages, NameTheWayOutForATensor) {
  for (const char* const mistake : {"Sum(group, x) + x", "x + Sum(group, x)", "Sum(group, x) * x",
                                    "x * Sum(group, x)", "tutti::partial_mean(group, x, 1) + x"}) {
    EXPECT_THAT(messages_about(std::string("x = ") + mistake + ";"),
                HasSubstr("ReduceThePartialFirst"))
        << mistake;
  }
}

TEST(PartialMessages, NameTheWayOutForOneThatIsNotMoved) {
  for (const char* const mistake : {"sum.reduce()", "sum.reduce_scatter()"}) {
    EXPECT_THAT(messages_about(std::string("Sum sum(group, x); x = ") + mistake + ";"),
                HasSubstr("ReduceWithStdMoveOfThePartial"))
        << mistake;
  }
}

}  // namespace
}  // namespace tutti::test::partial_messages
