// What a timeline shows of a step, and of the program's own collectives.

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "support/running_command.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/step/step_exchange.h"
#include "sync/whole_step.h"

namespace tutti::test {
namespace {

// promise: launcher#where-the-time-goes
TEST(Timeline, ShowsStepsFoldsWaitsAndCollectives) {
  constexpr int kRanks = 3;
  const std::vector<std::size_t> sizes = {65, 5000, 1};
  const TemporaryFolder folder;
  const std::string file = folder.file("run.json");
  setenv("TUTTI_PROFILE", file.c_str(), 1);
  run_thread_ranks(kRanks, [&](const Job& job) {
    Group group(job);
    ExchangeOptions options;
    options.name = "model";
    StepExchange exchange(group, plan_of(sizes), options);
    const std::vector<float> gradient(5000, static_cast<float>(job.rank() + 1));
    for (int step = 1; step <= 2; ++step) {
      exchange.open_one_backward(1);
      for (std::size_t p = sizes.size(); p > 0; --p)
        exchange.leaves().write(p - 1, gradient.data(), true);
      finish(exchange);
    }
    group.barrier();
  });
  unsetenv("TUTTI_PROFILE");
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ifstream part(file + ".rank" + std::to_string(rank));
    const auto timeline = nlohmann::json::parse(part);
    std::set<std::string> names;
    for (const auto& event : timeline["traceEvents"]) names.insert(event["name"]);
    for (const std::string name : {"fold", "wait", "barrier"})
      EXPECT_TRUE(names.contains(name)) << name << " of rank " << rank;
    for (const std::string step : {"step 1 of \"model\"", "step 2 of \"model\""})
      EXPECT_TRUE(names.contains(step)) << testing::PrintToString(names);
  }
}

}  // namespace
}  // namespace tutti::test
