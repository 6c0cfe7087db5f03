// examples/08_faces.cpp: what it says, and that it is the same on any number of workers.

#include <gmock/gmock.h>

#include <regex>
#include <string>
#include <vector>

#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string faces(int workers, const std::vector<std::string>& options) {
  std::vector<std::string> all{"run", "-n", std::to_string(workers),
                               std::string(TUTTI_EXAMPLES) + "/faces"};
  all.insert(all.end(), options.begin(), options.end());
  const auto run = run_command(all);
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  return run.out;
}

/// What the expression's first group matches.
std::string found(const std::string& text, const std::string& expression) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(expression)) ? match[1].str() : "";
}

const std::string kDigest = "parameters sha256 ([0-9a-f]{64})";
const std::string kPeak = "at most ([0-9.]+) GB of memory in all";

TEST(FacesExample, EndsWithTheSameBytesOnAnyNumberOfWorkers) {
  const std::vector<std::string> options{"--classes", "30000",   "--sample-rate",
                                         "0.1",       "--steps", "5"};
  const auto alone = faces(1, options);
  EXPECT_THAT(alone,
              AllOf(HasSubstr("30000 classes of 64 features: 15.36 MB of weights and momentum "
                              "in all, 15.36 MB for the worker with most of them"),
                    HasSubstr("samples/s, at most ")));
  const auto digest = found(alone, kDigest);
  EXPECT_NE(digest, "");
  for (const int workers : {2, 3}) EXPECT_EQ(found(faces(workers, options), kDigest), digest);
}

TEST(FacesExample, LearnsWhatTheNearestCentreDoesNotTell) {
  const auto out = faces(2, {"--classes", "1000", "--steps", "600"});
  const auto accuracy = found(out, "accuracy among the classes that took part ([0-9.]+)");
  const auto nearest = found(out, "whose centre is the nearest, without learning, ([0-9.]+)");
  ASSERT_NE(accuracy, "");
  ASSERT_NE(nearest, "");
  EXPECT_GE(std::stod(accuracy), 0.99);
  EXPECT_LT(std::stod(nearest), 0.9);
}

// promise: parallel_cross_entropy.h#ParallelCrossEntropy
TEST(FacesExample, TrainsAMillionClassesInLittleMoreThanTheirWeights) {
  const auto of = [&](const char* classes) {
    return std::stod(found(faces(1, {"--classes", classes, "--steps", "2"}), kPeak));
  };
  // Weights and momentum are 0.512 GB; logits of a batch would be as much again, and so a gradient
  // and a half.
  EXPECT_LE(of("1000000") - of("20000"), 0.512 * 1.05 + 0.034);
}

TEST(FacesExample, SaysWhatItDoesNotKnow) {
  const auto run =
      run_command({"run", "-n", "1", std::string(TUTTI_EXAMPLES) + "/faces", "--rate"});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err + run.out, HasSubstr("--help lists the options"));
  for (const auto& [option, value] :
       std::vector<std::pair<std::string, std::string>>{{"--classes", "0"},
                                                        {"--classes", "99999999999999999999"},
                                                        {"--steps", "-3"},
                                                        {"--batch", "0"},
                                                        {"--margin", "-1"}}) {
    const auto wrong =
        run_command({"run", "-n", "1", std::string(TUTTI_EXAMPLES) + "/faces", option, value});
    EXPECT_NE(wrong.status, 0) << option << " " << value;
    EXPECT_THAT(wrong.err + wrong.out, HasSubstr(option)) << value;
  }
  const auto refused = run_command(
      {"run", "-n", "1", std::string(TUTTI_EXAMPLES) + "/faces", "--classes", "10000000000"});
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err + refused.out,
              AllOf(HasSubstr("not enough memory: classifier \"faces\" of 10000000000 classes"),
                    HasSubstr("needs 4.66 TiB for one worker")));
}

}  // namespace
}  // namespace tutti::test
