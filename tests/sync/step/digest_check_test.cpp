// What workers compare of their models in the first steps.

#include "sync/step/digest_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/thread_ranks.h"
#include "sync/nodes/step_memory.h"
#include "sync/step/first_look.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

Plan plan() {
  return {{{"weight", {4}, {1}, 4, DType::float32}, {"bias", {2}, {1}, 2, DType::float32}},
          {{"mean", {3}, {1}, 3, DType::float32}}};
}

struct Boards {
  explicit Boards(const Group& group, const Plan& plan)
      : memory(group, "boards"),
        boards(memory.add<StepBoard>(plan.parameters().size(), plan.buffers().size())) {}
  StepMemory memory;
  StepBoards boards;
};

TEST(DigestCheck, LooksInPowersOfTwoAndEveryNthStep) {
  std::vector<std::uint64_t> steps;
  for (std::uint64_t step = 1; step <= 250; ++step) {
    if (is_checked_step(step, 100)) steps.push_back(step);
    EXPECT_FALSE(is_checked_step(step, 0));
  }
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{1, 2, 4, 8, 16, 32, 64, 100, 200}));
}

TEST(DigestCheck, NamesTheFirstThatDiffersAndWhoHasIt) {
  for (const int culprit : {-1, 1, 2}) {
    for (const char* what : {"weight", "bias", "mean"}) {
      run_thread_ranks(3, [&](const Job& job) {
        const Group group(job);
        const auto mine = plan();
        const Boards boards(group, mine);
        DigestCheck check(mine, boards.boards, 100);
        std::vector<float> weight = {1, 2, 3, 4};
        std::vector<float> bias = {5, 6};
        std::vector<float> mean = {7, 8, 9};
        if (group.rank() == culprit) {
          // All that comes later differs too.
          if (what == std::string("weight")) weight[3] = 0;
          if (what != std::string("mean")) bias[0] = -0.0f;
          mean[1] = 0;
        }
        const ModelMemory model{{weight.data(), bias.data()}, {mean.data()}};
        EXPECT_TRUE(check.due(1));
        check.note_buffers(model);
        check.publish(model);
        group.barrier();
        if (culprit < 0) {
          EXPECT_NO_THROW(check.compare("step 1"));
        } else {
          try {
            check.compare("step 1");
            ADD_FAILURE() << "no difference of " << what;
          } catch (const Mismatch& error) {
            const auto kind = what == std::string("mean") ? "buffer" : "parameter";
            EXPECT_THAT(error.what(),
                        HasSubstr(std::string("step 1: ") + kind + " \"" + what + "\" of rank " +
                                  std::to_string(culprit) + " differs from that of rank 0"));
          }
          EXPECT_FALSE(check.difference(std::vector<int>{0, 3 - culprit}));
        }
        group.barrier();
      });
    }
  }
}

TEST(DigestCheck, AloneThereIsNothingToCompare) {
  run_thread_ranks(1, [](const Job& job) {
    const Group group(job);
    const auto mine = plan();
    const Boards boards(group, mine);
    EXPECT_FALSE(DigestCheck(mine, boards.boards, 100).due(1));
  });
}

/// What rank 0 says of a step in which the workers' gradients are `values`.
std::string said_of(const std::vector<float>& values, std::uint64_t step) {
  std::string said;
  run_thread_ranks(2, [&](const Job& job) {
    const Group group(job);
    const auto mine = plan();
    const Boards boards(group, mine);
    FirstLook look(boards.boards, "model");
    look.start();
    look.open(step);
    const auto value = values[static_cast<std::size_t>(group.rank())];
    look.note(0, 0, &value, sizeof value);
    look.generator(7, 8);
    look.publish();
    group.barrier();
    if (group.rank() == 0) {
      testing::internal::CaptureStderr();
      look.compare(static_cast<std::int64_t>(step));
      said = testing::internal::GetCapturedStderr();
    }
    group.barrier();
  });
  return said;
}

TEST(FirstLook, EqualGradientsOfAllWorkersAreWarnedOfInTheFirstStepsAlone) {
  EXPECT_THAT(said_of({2, 2}, 1), HasSubstr("step 1 of \"model\": all workers computed the same"));
  EXPECT_EQ(said_of({2, 3}, 1), "");
  EXPECT_EQ(said_of({0, 0}, 1), "") << "nobody has learnt anything";
  EXPECT_EQ(said_of({2, 2}, 100), "");
}

}  // namespace
}  // namespace tutti::test
