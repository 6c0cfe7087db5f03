// What TUTTI_PROFILE records of a training run.

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::profile_cases {
namespace {

/// How often each event occurs, without the digits of its name.
std::map<std::string, int> events_of(const std::string& file) {
  std::map<std::string, int> counts;
  std::ifstream stream(file);
  const auto trace = nlohmann::json::parse(stream);
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["dur"].get<double>(), 0);
    auto name = event["name"].get<std::string>();
    std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
    ++counts[name];
  }
  return counts;
}

TEST(Profile, HoldsEveryStepOfEveryModelAndEveryBucket) {
  const TemporaryFolder folder;
  const auto file = folder.file("trace");
  ::setenv("TUTTI_PROFILE", file.c_str(), 1);
  on_workers(2, [](const Job& job) {
    auto generator = mlp();
    auto critic = mlp();
    // Buckets of one parameter each: four per step.
    DataParallel parallel_generator(job, *generator, {.name = "generator"});
    DataParallel parallel_critic(job, *critic, {.name = "critic", .fusion = 1, .first_fusion = 1});
    for (std::uint64_t step = 1; step <= 3; ++step) {
      for (auto* model : {&generator, &critic}) {
        (*model)->zero_grad();
        Batch(4, step).loss(*model, 0, 4).backward();
      }
    }
  });
  ::unsetenv("TUTTI_PROFILE");
  for (const auto* rank : {".rank0", ".rank1"}) {
    auto counts = events_of(file + rank);
    EXPECT_EQ(counts["step  of \"generator\""], 3);
    EXPECT_EQ(counts["step  of \"critic\""], 3);
    EXPECT_EQ(counts["fold"], 3 * 1 + 3 * 4);
    EXPECT_EQ(counts["wait for the device"] > 0, test_device_profile().has_value());
  }
}

}  // namespace
}  // namespace tutti::test::profile_cases
