// Examples of programs whose data are their own: a variational autoencoder, fine-tuning, episodes.
// The same numbers on 1 and 3 workers, and they learn.

#include <gmock/gmock.h>

#include <regex>
#include <string>
#include <vector>

#include "examples/digits.h"

namespace tutti::test {
namespace {

/// What rank 0 prints, which is the same on 1 and 3 workers.
std::string printed(const std::string& example, const std::vector<std::string>& arguments) {
  std::string alone;
  for (const int workers : {1, 3}) {
    const TemporaryFolder folder;
    std::vector<std::string> words = {"run", "-n", std::to_string(workers), program(example)};
    words.insert(words.end(), arguments.begin(), arguments.end());
    if (example == "fine_tuning") words.push_back(folder.file("body"));
    const auto run = run_command(words);
    EXPECT_EQ(run.status, 0) << run.err;
    std::string text;
    for (const auto& line : lines_of(run.out)) {
      if (line.starts_with("[0] ")) text += line.substr(4) + "\n";
    }
    EXPECT_THAT(text, ::testing::ContainsRegex("parameters sha256 [0-9a-f]{64}"));
    if (workers == 1) alone = text;
    EXPECT_EQ(text, alone) << example << ", workers " << workers;
  }
  return alone;
}

/// The number in the first group of each match.
std::vector<double> numbers(const std::string& text, const std::string& pattern) {
  std::vector<double> all;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    all.push_back(std::stod((*at)[1]));
  }
  return all;
}

// promise: how#train-with-losses-that-are-sums
TEST(LearningExamples, AVariationalAutoencoderAddsItsLossesUp) {
  const auto losses = numbers(printed("vae", {"2"}), "loss per sample ([0-9.]+)");
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_LT(losses[1], losses[0] * 0.8);
}

// promise: how#take-weights-from-python
TEST(LearningExamples, FineTuningBeginsWithAnotherModelsBody) {
  const auto right = numbers(printed("fine_tuning", {}), ": ([0-9.]+) of the test's");
  ASSERT_EQ(right.size(), 3u);
  EXPECT_GT(right[1], 0.5);  // a random body: 0.15
  EXPECT_GT(right[2], right[1]);
}

// promise: trainer#state-of-a-shard
TEST(LearningExamples, EpisodesOfEachShardTeachAPolicy) {
  const auto lengths = numbers(printed("ppo", {"10"}), "episodes ([0-9.]+)");
  ASSERT_EQ(lengths.size(), 3u);  // of rounds 1 to 5, of 6 to 10, of tests
  EXPECT_GT(lengths[1], lengths[0] * 1.5);
}

}  // namespace
}  // namespace tutti::test
