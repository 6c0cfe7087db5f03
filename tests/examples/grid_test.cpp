// examples/09_grid.cpp: a grid trains the model that one worker trains.

#include <gmock/gmock.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

std::string grid(int workers) {
  const auto run =
      run_command({"run", "-n", std::to_string(workers), std::string(TUTTI_EXAMPLES) + "/grid"});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_THAT(run.err + run.out, ::testing::Not(::testing::HasSubstr("warning")));
  return run.out;
}

/// Each time what the expression's first group matches.
std::vector<std::string> all_found(const std::string& text, const std::string& expression) {
  std::vector<std::string> found;
  const std::regex pattern(expression);
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

const std::string kNumbers = "(?:mean loss|whole head) ([0-9.]+)";

TEST(GridExample, TrainsTheModelOfOneWorker) {
  const auto alone = all_found(grid(1), kNumbers);
  ASSERT_EQ(alone.size(), 5);
  EXPECT_LT(std::stod(alone[3]), std::stod(alone[0]) / 2) << "it learns";
  for (const int workers : {2, 3, 4}) {
    const auto out = grid(workers);
    const auto numbers = all_found(out, kNumbers);
    ASSERT_EQ(numbers.size(), alone.size()) << out;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_NEAR(std::stod(numbers[i]), std::stod(alone[i]), 1e-3 * std::stod(alone[i]))
          << workers;
    }
    const auto trunks = all_found(out, "sha256 ([0-9a-f]{64})");
    EXPECT_EQ(trunks.size(), static_cast<std::size_t>(workers));
    EXPECT_EQ(std::set<std::string>(trunks.begin(), trunks.end()).size(), 1) << out;
  }
}

}  // namespace
}  // namespace tutti::test
