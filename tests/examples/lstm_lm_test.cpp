// examples/10_lstm_lm.cpp: carried states, on any number of workers, and after a stop.

#include <gmock/gmock.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A small model on real text; parts of some 70 words, so that 9 steps begin them anew once.
Finished run_lm(int workers, const std::vector<std::string>& options) {
  std::vector<std::string> all{"run", "-n", std::to_string(workers),
                               std::string(TUTTI_EXAMPLES) + "/lstm_lm"};
  const auto add = [&](const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  add({"--text", std::string(TUTTI_SOURCE) + "/LICENSE", "--hidden", "16", "--rows", "3"});
  add({"--length", "11", "--shards", "8", "--vocabulary", "200", "--seed", "3"});
  add(options);
  return run_command(all);
}

/// "step S parameters sha256 …", or "".
std::string end_of(const Finished& run) {
  std::smatch found;
  return std::regex_search(run.out, found, std::regex("step [0-9]+ parameters sha256 [0-9a-f]{64}"))
             ? found.str()
             : run.err;
}

TEST(LstmLmExample, EndsWithTheSameBytesOnAnyNumberOfWorkersAndWithoutRecomputation) {
  std::set<std::string> ends;
  for (const int workers : {1, 2, 3, 5, 8}) {
    const auto run = run_lm(workers, {"--steps", "9", "--recompute"});
    ASSERT_EQ(run.status, 0) << run.err;
    ends.insert(end_of(run));
  }
  ends.insert(end_of(run_lm(2, {"--steps", "9"})));
  EXPECT_EQ(ends.size(), 1U);
  EXPECT_THAT(*ends.begin(), StartsWith("step 9 "));
}

TEST(LstmLmExample, StopsOnThreeWorkersAndGoesOnWithTwoFromTheStatesOfItsShards) {
  const TemporaryFolder folder;
  const auto saved = folder.file("run");
  const auto straight = run_lm(1, {"--steps", "9", "--recompute"});
  const auto first = run_lm(3, {"--steps", "4", "--recompute", "--save", saved});
  ASSERT_EQ(first.status, 0) << first.err;
  const auto second = run_lm(2, {"--steps", "9", "--recompute", "--load", saved});
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("resumed from step 4\n"));
  EXPECT_THAT(end_of(straight), StartsWith("step 9 "));
  EXPECT_EQ(end_of(second), end_of(straight));
}

TEST(LstmLmExample, CarriesStatesFromStepToStep) {
  const auto carried = run_lm(1, {"--steps", "2"});
  const auto forgotten = run_lm(1, {"--steps", "2", "--forget"});
  EXPECT_THAT(end_of(forgotten), StartsWith("step 2 "));
  EXPECT_NE(end_of(forgotten), end_of(carried));
  // The first step has none to carry.
  EXPECT_EQ(end_of(run_lm(1, {"--steps", "1", "--forget"})), end_of(run_lm(1, {"--steps", "1"})));
}

TEST(LstmLmExample, LearnsWordsThatItHasSeenAndThoseThatAreHeldOut) {
  const auto run = run_lm(2, {"--steps", "60", "--every", "20", "--recompute", "--chunk", "4"});
  ASSERT_EQ(run.status, 0) << run.err;
  std::vector<double> losses;
  std::vector<double> held_out;
  const std::regex figures(
      "loss ([0-9.]+), perplexity [0-9.]+; held out: loss ([0-9.]+), perplexity [0-9.]+");
  for (std::sregex_iterator match(run.out.begin(), run.out.end(), figures), end; match != end;
       ++match) {
    losses.push_back(std::stod((*match)[1]));
    held_out.push_back(std::stod((*match)[2]));
  }
  ASSERT_EQ(losses.size(), 3U) << run.out;
  EXPECT_LT(losses[2], losses[0] - 0.3);
  EXPECT_LT(held_out[2], held_out[0] - 0.1);
}

TEST(LstmLmExample, SaysWhatIsWrong) {
  const auto refusal = [](const std::string& text, const std::string& option,
                          const std::string& value) {
    return run_command({"run", "-n", "1", std::string(TUTTI_EXAMPLES) + "/lstm_lm", "--text", text,
                        option, value})
        .err;
  };
  const auto text = std::string(TUTTI_SOURCE) + "/LICENSE";
  EXPECT_THAT(refusal("/nowhere", "--steps", "2"), HasSubstr("cannot read the text /nowhere"));
  EXPECT_THAT(refusal(text, "--length", "500"), HasSubstr("the text is too short"));
  EXPECT_THAT(refusal(text, "--chunk", "-1"), HasSubstr("--help lists the options"));
}

}  // namespace
}  // namespace tutti::test
