// Averages over the steps against a scalar recursion, and the model under them.

#include "sync/update/moving_averages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"

namespace tutti::test {
namespace {

const std::vector<std::size_t> kAveragedCounts = {3, 5000, 65};
constexpr double kDecay = 0.75;

Values value_of(std::size_t p, int step) {
  return random_values(p * 10 + static_cast<std::uint64_t>(step), kAveragedCounts[p]);
}

TEST(MovingAverages, FollowTheValuesOnAnyNumberOfWorkers) {
  for (const int workers : {1, 2, 3, 5}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const Group group(job);
      const auto plan = plan_of(kAveragedCounts);
      SharedModel model(group, plan, {0, 1, 0}, true, "model");
      MovingAverages averages(plan, model, kDecay, group.rank(), group.size());
      std::vector<Values> expected(kAveragedCounts.size());
      for (int step = 1; step <= 3; ++step) {
        for (std::size_t p = 0; p < kAveragedCounts.size(); ++p) {
          const auto value = value_of(p, step);
          if (group.rank() == 0) std::memcpy(model.value(p), value.data(), value.size() * 4);
          if (step == 1) expected[p] = value;
          for (std::size_t i = 0; i < value.size() && step > 1; ++i) {
            expected[p][i] = static_cast<float>(kDecay) * expected[p][i] +
                             static_cast<float>(1 - kDecay) * value[i];
          }
        }
        group.barrier();
        averages.follow();
        group.barrier();
      }
      EXPECT_EQ(averages.steps(), 3);
      const auto expect = [&](const std::byte* at, const Values& values, const char* what) {
        const auto* const got = reinterpret_cast<const float*>(at);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_FLOAT_EQ(got[i], values[i]) << what << ", " << workers << " workers";
        }
      };
      for (std::size_t p = 0; p < kAveragedCounts.size(); ++p)
        expect(model.average(p), expected[p], "a");
      group.barrier();
      averages.swap_in();
      group.barrier();
      for (std::size_t p = 0; p < kAveragedCounts.size(); ++p) {
        expect(model.value(p), expected[p], "swapped in");
      }
      group.barrier();
      averages.swap_out();
      group.barrier();
      for (std::size_t p = 0; p < kAveragedCounts.size(); ++p) {
        const auto value = value_of(p, 3);
        EXPECT_EQ(std::memcmp(model.value(p), value.data(), value.size() * 4), 0);
      }
      group.barrier();
    });
  }
}

}  // namespace
}  // namespace tutti::test
