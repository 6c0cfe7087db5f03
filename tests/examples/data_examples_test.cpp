// The examples that read through torch::data, on small data in MNIST's format: the same bytes on
// any number of workers, and few lines that differ from the same programs without Tutti.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "examples/digits.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

/// 150 pictures are three steps of at most 64 in an epoch, the last of 22.
class DataExamples : public ::testing::Test {
 protected:
  DataExamples() {
    std::filesystem::create_directory(data_);
    write_digits(data_, "train", 150);
    write_digits(data_, "t10k", 37);
  }
  /// What rank 0 prints of its epochs, and the digest, which all workers print alike.
  void expect_same_bytes(const std::string& example, const std::string& epoch_line) {
    std::set<std::string> results;
    for (const int workers : {1, 2, 3}) {
      const auto run =
          run_command({"run", "-n", std::to_string(workers), program(example), data_, "2"});
      ASSERT_EQ(run.status, 0) << run.err;
      std::vector<std::string> epochs;
      std::set<std::string> digests;
      int printed = 0;
      std::istringstream lines(run.out);
      const std::regex digest("parameters sha256 [0-9a-f]{64}");
      for (std::string line; std::getline(lines, line);) {
        std::smatch found;
        const auto epoch = line.find("epoch ");
        if (epoch != std::string::npos) epochs.push_back(line.substr(epoch));
        if (!std::regex_search(line, found, digest)) continue;
        digests.insert(found.str());
        ++printed;
      }
      ASSERT_EQ(epochs.size(), 2u) << run.out;
      EXPECT_THAT(epochs[1], ::testing::MatchesRegex(epoch_line));
      EXPECT_EQ(printed, workers);
      ASSERT_EQ(digests.size(), 1u) << run.out;
      results.insert(epochs[0] + epochs[1] + *digests.begin());
    }
    EXPECT_EQ(results.size(), 1u);
  }
  TemporaryFolder folder_;
  std::string data_ = folder_.file("data");
};

TEST_F(DataExamples, MnistEndsWithTheSameBytesOnAnyNumberOfWorkers) {
  expect_same_bytes("mnist", "epoch 2 of 2: loss of the test [0-9.]+, accuracy [0-9.]+");
}

TEST_F(DataExamples, DcganEndsWithTheSameBytesOnAnyNumberOfWorkers) {
  expect_same_bytes("dcgan",
                    "epoch 2 of 2: loss of the discriminator [0-9.]+, of the generator [0-9.]+");
}

/// The accuracy after the last epoch, and the digest of all workers.
struct Accuracy {
  std::string value, digest;
};

Accuracy accuracy_of(int workers, const std::string& name, const std::string& data,
                     const std::string& epochs) {
  const auto run = run_command({"run", "-n", std::to_string(workers), program(name), data, epochs});
  EXPECT_EQ(run.status, 0) << run.err;
  const std::regex accuracy("epoch " + epochs + " of " + epochs + ": .*accuracy ([0-9.]+)");
  const std::regex digest("parameters sha256 ([0-9a-f]{64})");
  std::set<std::string> accuracies, digests;
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (std::regex_search(line, found, accuracy)) accuracies.insert(found[1]);
    if (std::regex_search(line, found, digest)) digests.insert(found[1]);
  }
  EXPECT_EQ(accuracies.size(), 1u) << run.out;
  EXPECT_LE(digests.size(), 1u) << run.out;
  return {accuracies.empty() ? "" : *accuracies.begin(), digests.empty() ? "" : *digests.begin()};
}

/// Every picture for training is of class 3, so that each of the test becomes one: the accuracy is
/// the share of class 3 in the test, of which each worker alone would have another one.
TEST_F(DataExamples, MnistInParallelHasTheAccuracyOfOneProcess) {
  const auto write_classes = [&](const std::string& part, const std::string& classes) {
    const auto count = static_cast<std::uint32_t>(classes.size());
    write_digits(data_, part, count);
    write_idx(data_ + "/" + part + "-labels-idx1-ubyte", {count}, classes);
  };
  write_classes("train", std::string(129, '\3'));  // the third batch of an epoch has one picture
  write_classes("t10k", std::string(9, '\3') + std::string(28, '\5'));
  const auto alone = accuracy_of(1, "plain_mnist", data_, "20");
  EXPECT_EQ(alone.value, "0.2432");  // 9 of 37
  for (const int workers : {1, 2, 3}) {
    const auto parallel = accuracy_of(workers, "mnist_parallel", data_, "20");
    EXPECT_EQ(parallel.value, alone.value) << workers;
    EXPECT_THAT(parallel.digest, ::testing::SizeIs(64)) << workers;
  }
}

TEST_F(DataExamples, ThePlainProgramsRun) {
  for (const char* const name : {"plain_mnist", "plain_dcgan"}) {
    const auto run = run_command({"run", "-n", "1", program(name), data_, "1"});
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("epoch 1 of 1: loss of the "));
  }
}

TEST_F(DataExamples, FilesThatAreNoIdxFilesAreNamed) {
  const auto labels = data_ + "/t10k-labels-idx1-ubyte";
  write_idx(labels, {37, 1}, std::string(37, '\0'));
  const auto other = run_command({"run", "-n", "2", program("mnist"), data_, "1"});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, HasSubstr("no idx file: " + labels));
  write_idx(labels, {37}, std::string(36, '\0'));
  const auto torn = run_command({"run", "-n", "1", program("mnist"), data_, "1"});
  EXPECT_THAT(torn.err, HasSubstr(labels + " ends too early"));
}

std::string source(const std::string& path) {
  std::ifstream file(std::string(TUTTI_SOURCE) + "/" + path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream text(source(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// Lines of either that are not in a longest common subsequence: what diff counts with < and >.
std::size_t changed_lines(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::size_t> common(b.size() + 1, 0);
  for (const auto& line : a) {
    std::size_t diagonal = 0;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const auto above = common[j + 1];
      common[j + 1] = line == b[j] ? diagonal + 1 : std::max(above, common[j]);
      diagonal = above;
    }
  }
  return a.size() + b.size() - 2 * common.back();
}

/// What a page says of it is counted here.
void expect_few_changes(const std::string& plain, const std::string& example, std::size_t most,
                        const std::string& page) {
  const auto before = lines_of(plain);
  const auto changed = changed_lines(before, lines_of(example));
  EXPECT_GT(changed, 10u);
  EXPECT_LE(changed, most);
  EXPECT_THAT(source(page), HasSubstr(std::to_string(changed) + " changed lines of " +
                                      std::to_string(before.size())));
}

TEST(ChangedLines, AreAtMost36OfMnistAndThoseOfItsPage) {
  expect_few_changes("examples/plain/mnist.cpp", "examples/04_mnist.cpp", 36, "docs/data.md");
}

TEST(ChangedLines, AreAtMost20AddedToMnistInParallelAndThoseOfItsPage) {
  const auto before = lines_of("examples/plain/mnist.cpp");
  const auto after = lines_of("examples/12_mnist_parallel.cpp");
  const auto changed = changed_lines(before, after);
  EXPECT_LE((changed + after.size() - before.size()) / 2, 20u);  // added ones
  expect_few_changes("examples/plain/mnist.cpp", "examples/12_mnist_parallel.cpp", 25,
                     "docs/data.md");
}

TEST(ChangedLines, BesideAnAverageByHandAreThoseOfItsPage) {
  const std::string example = "examples/01_first_steps.cpp";
  expect_few_changes("examples/plain/first_steps_mpi.cpp", example, 44, "docs/data_parallel.md");
  expect_few_changes("examples/plain/first_steps_gloo.cpp", example, 61, "docs/data_parallel.md");
}

TEST(ChangedLines, AreAtMost40OfDcganAndThoseOfItsPage) {
  expect_few_changes("examples/plain/dcgan.cpp", "examples/05_dcgan.cpp", 40, "docs/how.md");
}

}  // namespace
}  // namespace tutti::test
