// Levels of instruction sets as real workers meet them: `tutti run --cpu`, and environments that
// differ.

#include <gmock/gmock.h>

#include <cstdio>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/cpu_level.h"
#include "support/running_command.h"

namespace tutti::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// char_lm with shards, small but wide enough for vectors, on so many workers.
std::vector<std::string> char_lm(int workers, const std::vector<std::string>& run_options) {
  std::vector<std::string> all{"run", "-n", std::to_string(workers)};
  all.insert(all.end(), run_options.begin(), run_options.end());
  const std::string text = std::string(TUTTI_SOURCE) + "/LICENSE";
  const std::vector<std::string> rest{std::string(TUTTI_EXAMPLES) + "/char_lm",
                                      "--text",
                                      text,
                                      "--steps",
                                      "4",
                                      "--shards",
                                      "5",
                                      "--rows",
                                      "3",
                                      "--length",
                                      "12",
                                      "--hidden",
                                      "50"};
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

/// Without what the test itself was started with.
const CommandSetup kUnbounded{
    .environment = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "TUTTI_LOG=debug"}};

std::string digest(const Finished& run) {
  EXPECT_EQ(run.status, 0) << run.err;
  std::smatch found;
  const std::regex pattern("parameters sha256 ([0-9a-f]{64})");
  return std::regex_search(run.out, found, pattern) ? found[1].str() : "";
}

bool this_has(const char* level) { return has_level(read_processor(), *find_cpu_level(level)); }

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Levels, GiveTheSameBytesOnAnyNumberOfWorkers) {
  for (const char* const level : {"default", "avx2", "avx512"}) {
    if (!this_has(level)) {
      std::printf("not tried: this processor has no %s\n", level);
      continue;
    }
    std::set<std::string> digests;
    for (const int workers : {1, 2, 3}) {
      const auto run = run_command(char_lm(workers, {"--cpu", level}), kUnbounded);
      digests.insert(digest(run));
      EXPECT_THAT(run.err, HasSubstr(std::string("cpu level ") + level));
    }
    EXPECT_EQ(digests.size(), 1u) << level;
    EXPECT_FALSE(digests.contains("")) << level;
  }
}

// Without this, equal bytes might mean that no library obeys.
// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Levels, WithOtherKernelsGiveOtherBytes) {
  if (!this_has("avx2")) GTEST_SKIP() << "this processor has one level only";
  EXPECT_NE(digest(run_command(char_lm(1, {"--cpu", "default"}), kUnbounded)),
            digest(run_command(char_lm(1, {"--cpu", "avx2"}), kUnbounded)));
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Levels, AWorkerWhoseEnvironmentHasAnotherIsRefusedByName) {
  if (!this_has("avx2")) GTEST_SKIP() << "this processor has one level only";
  for (const char* const program : {"char_lm --text \"$TEXT\" --steps 2 --shards 3",
                                    "char_lm --text \"$TEXT\" --steps 2 --micro-batches 3"}) {
    const auto run = run_script(
        {"-n", "3"},
        std::string("if [ $TUTTI_RANK = 1 ]; then export ATEN_CPU_CAPABILITY=default; fi\n"
                    "exec ") +
            TUTTI_EXAMPLES + "/" + program,
        {.environment = {"ATEN_CPU_CAPABILITY", "TEXT=" + std::string(TUTTI_SOURCE) + "/LICENSE"}});
    EXPECT_NE(run.status, 0);
    EXPECT_THAT(
        run.err,
        AllOf(HasSubstr("rank 1, unlike rank 0: setting \"instruction set\" is DEFAULT, not AVX"),
              HasSubstr("`tutti run --cpu avx2` levels")))
        << program;
  }
}

}  // namespace
}  // namespace tutti::test
