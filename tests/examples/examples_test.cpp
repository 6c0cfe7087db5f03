// The examples as their readers run them: under the launcher, on real text.

#include <gmock/gmock.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

std::string example(const std::string& name) { return std::string(TUTTI_EXAMPLES) + "/" + name; }

/// Whatever the expression's first group matched, each time.
std::vector<std::string> all_matches(const std::string& text, const std::string& expression) {
  std::vector<std::string> found;
  const std::regex pattern(expression);
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

const std::string kDigest = "(parameters sha256 [0-9a-f]{64})";

TEST(Examples, CharLmEndsWithTheSameBytesOnAnyNumberOfWorkers) {
  std::set<std::string> ends;
  for (const int workers : {1, 2, 3, 4}) {
    const auto run = run_command({"run",
                                  "-n",
                                  std::to_string(workers),
                                  example("char_lm"),
                                  "--text",
                                  std::string(TUTTI_SOURCE) + "/LICENSE",
                                  "--steps",
                                  "6",
                                  "--micro-batches",
                                  "4",
                                  "--rows",
                                  "3",
                                  "--length",
                                  "12",
                                  "--hidden",
                                  "20",
                                  "--sample",
                                  "9",
                                  "--seed",
                                  "5"});
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("sample: "));
    EXPECT_THAT(run.out, HasSubstr("together 24 = 6 steps x 4 micro-batches: all, each once"));
    const auto counts = all_matches(run.out, "computed ([0-9]+) micro-batches");
    EXPECT_EQ(counts.size(), static_cast<std::size_t>(workers));
    const auto lines = all_matches(run.out, "(step 6 loss [0-9.]+ " + kDigest + ")");
    ASSERT_EQ(lines.size(), 1u) << run.out;
    ends.insert(lines[0]);
  }
  EXPECT_EQ(ends.size(), 1u);
}

TEST(Examples, CharLmOfShardsEndsWithTheSameBytesOnAnyNumberOfWorkers) {
  std::set<std::string> ends;
  for (const char* const workers : {"1", "2", "3", "5", "8"}) {
    const auto run = run_command({"run",      "-n",
                                  workers,    example("char_lm"),
                                  "--text",   std::string(TUTTI_SOURCE) + "/LICENSE",
                                  "--steps",  "4",
                                  "--shards", "8",
                                  "--rows",   "3",
                                  "--length", "12",
                                  "--hidden", "20",
                                  "--sample", "9",
                                  "--seed",   "5"});
    ASSERT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("together 32 = 4 steps x 8 shards: all, each once"));
    const auto lines = all_matches(run.out, "(step 4 loss [0-9.]+ " + kDigest + ")");
    ASSERT_EQ(lines.size(), 1u) << run.out;
    ends.insert(lines[0]);
  }
  EXPECT_EQ(ends.size(), 1u);
}

TEST(Examples, CharLmDependsOnItsSeed) {
  std::set<std::string> ends;
  for (const auto* seed : {"1", "2"}) {
    const auto run = run_command({"run", "-n", "1", example("char_lm"), "--text",
                                  std::string(TUTTI_SOURCE) + "/LICENSE", "--steps", "2", "--rows",
                                  "2", "--length", "8", "--hidden", "8", "--seed", seed});
    ASSERT_EQ(run.status, 0) << run.err;
    for (const auto& end : all_matches(run.out, kDigest)) ends.insert(end);
  }
  EXPECT_EQ(ends.size(), 2u);
}

TEST(Examples, CharLmSaysWhatItCannotRead) {
  const auto run = run_command(
      {"run", "-n", "2", example("char_lm"), "--text", "/no/such/text", "--steps", "1"});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("cannot read the text /no/such/text"));
}

TEST(Examples, FirstStepsEndsWithTheSameBytesOnAllWorkers) {
  const auto run = run_command({"run", "-n", "3", example("first_steps")});
  ASSERT_EQ(run.status, 0) << run.err;
  auto ends = all_matches(run.out, kDigest);
  EXPECT_EQ(ends.size(), 3u) << run.out;
  EXPECT_EQ(std::set<std::string>(ends.begin(), ends.end()).size(), 1u);
}

}  // namespace
}  // namespace tutti::test
