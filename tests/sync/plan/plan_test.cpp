#include "sync/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_ranks.h"
#include "sync/plan/bucket_schedule.h"
#include "tutti/group.h"

namespace tutti::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TensorSpec spec(std::string name, std::int64_t count, DType dtype = DType::float32) {
  return {std::move(name), {count}, {1}, count, dtype};
}

TEST(Plan, ParametersStartOnCacheLinesInRegistrationOrder) {
  const Plan plan({spec("a", 1), spec("b", 17), spec("c", 3, DType::bfloat16), spec("d", 0),
                   spec("e", 9, DType::float64)},
                  {spec("buffer", 5, DType::uint8)});
  std::size_t last = 0;
  for (const auto& entry : plan.parameters()) {
    EXPECT_EQ(entry.node_offset % 64, 0u);
    EXPECT_EQ(entry.result_offset % 64, 0u);
    EXPECT_GE(entry.node_offset, last);
    last = entry.node_offset;
  }
  EXPECT_EQ(plan.parameters()[1].node_bytes, 128u);
  EXPECT_EQ(plan.parameters()[2].node_type, DType::float32);
  EXPECT_EQ(plan.parameters()[2].node_bytes, 64u);
  EXPECT_GE(plan.parameters()[2].result_offset, plan.slot_bytes());
  EXPECT_EQ(plan.parameters()[4].result_offset, plan.parameters()[4].node_offset);
  EXPECT_LT(plan.buffers()[0].offset, plan.base_bytes());
  EXPECT_EQ(plan.slot_offset(1), plan.base_bytes());
  EXPECT_EQ(plan.arena_bytes(3), plan.base_bytes() + 2 * plan.slot_bytes());
}

TEST(Plan, HasNoPlaceForGradientsThatOthersAddUp) {
  auto narrow = spec("b", 17, DType::bfloat16);
  auto wide = spec("a", 5000);
  narrow.is_summed_elsewhere = wide.is_summed_elsewhere = true;
  const Plan plan({wide, narrow}, {spec("buffer", 5, DType::uint8)});
  for (const auto& entry : plan.parameters()) {
    EXPECT_EQ(entry.node_count(), 0);
    EXPECT_EQ(entry.node_bytes + entry.result_bytes, 0u);
    EXPECT_FALSE(entry.is_reduced());
    EXPECT_FALSE(entry.is_partitioned());
  }
  EXPECT_EQ(plan.slot_bytes(), 0u);
  EXPECT_EQ(plan.bytes_of(0), 20000u);
}

TEST(Plan, TheHashSeesNamesShapesTypesOrderAndSettings) {
  const Plan plan({spec("a", 1), spec("b", 2)}, {}, {{"threads", "1"}});
  const std::vector<Plan> others = {
      Plan({spec("a", 1), spec("c", 2)}, {}, {{"threads", "1"}}),
      Plan({spec("a", 1), spec("b", 3)}, {}, {{"threads", "1"}}),
      Plan({spec("a", 1), spec("b", 2, DType::float64)}, {}, {{"threads", "1"}}),
      Plan({spec("b", 2), spec("a", 1)}, {}, {{"threads", "1"}}),
      Plan({spec("a", 1), spec("b", 2)}, {spec("b", 2)}, {{"threads", "1"}}),
      Plan({spec("a", 1), spec("b", 2)}, {}, {{"threads", "2"}}),
  };
  for (const auto& other : others) {
    EXPECT_NE(plan.hash(), other.hash());
    EXPECT_FALSE(plan_differences(plan.lines(), other.lines(), 5).empty());
  }
  EXPECT_EQ(plan.hash(), Plan({spec("a", 1), spec("b", 2)}, {}, {{"threads", "1"}}).hash());
}

TEST(Plan, DifferencesAreShortAndNameWhatDiffers) {
  const Plan plan({spec("a", 1), spec("b", 2)}, {}, {{"threads", "1"}});
  const Plan other({spec("a", 4), spec("c", 2)}, {}, {{"threads", "2"}});
  EXPECT_THAT(plan_differences(plan.lines(), other.lines(), 5),
              ElementsAre(HasSubstr("parameter \"a\" is float32 [4] strides [1], not float32 [1]"),
                          HasSubstr("lacks parameter \"b\""), HasSubstr("\"threads\" is 2, not 1"),
                          HasSubstr("has parameter \"c\"")));
  EXPECT_THAT(plan_differences(plan.lines(), other.lines(), 1),
              ElementsAre(HasSubstr("\"a\""), HasSubstr("and 3 more")));
  const Plan swapped({spec("b", 2), spec("a", 1)}, {}, {{"threads", "1"}});
  EXPECT_THAT(plan_differences(plan.lines(), swapped.lines(), 5),
              ElementsAre(HasSubstr("registers parameter \"b\" at position 0")));
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not
TEST(Plan, ADifferenceOfASettingComesWithItsRemedyOnAllWorkers) {
  const auto difference = [](const std::string& of_rank_1, const std::string& parameter) {
    const auto outcome = try_thread_ranks(3, [&](const Job& job) {
      const bool other = job.rank() == 1;
      const Plan plan({spec(other ? parameter : "a", 1)}, {},
                      {{"kernel", other ? of_rank_1 : "new"}, {"threads", "1"}},
                      {{"kernel", "take the same kernel"}, {"threads", "take as many"}});
      require_equal_plans(Group(job), plan);
    });
    EXPECT_EQ(outcome.text(0), outcome.text(1));
    EXPECT_EQ(outcome.text(0), outcome.text(2));
    return outcome.text(0);
  };
  EXPECT_EQ(difference("new", "a"), "");
  EXPECT_EQ(difference("old", "a"),
            "the workers' models or settings differ:\n"
            "  rank 1, unlike rank 0: setting \"kernel\" is old, not new\n"
            "  take the same kernel");
  EXPECT_THAT(difference("new", "b"), Not(HasSubstr("take")));
}

// promise: data_parallel.h#fusion, step_report.h#buckets
TEST(BucketSchedule, ABucketIsClosedOnceItHasMoreThanItsLimit) {
  const Plan plan({spec("a", 16), spec("b", 16), spec("c", 32), spec("d", 16), spec("e", 0)}, {});
  const auto order = BucketSchedule::default_order(plan);
  EXPECT_THAT(order, ElementsAre(4, 3, 2, 1, 0));
  const BucketSchedule schedule(plan, order, 15, 31);
  ASSERT_EQ(schedule.size(), 3u);
  EXPECT_THAT(schedule.parameters(0), ElementsAre(3));
  EXPECT_THAT(schedule.parameters(1), ElementsAre(2));
  EXPECT_THAT(schedule.parameters(2), ElementsAre(4, 1, 0));
  EXPECT_EQ(schedule.bucket_of(2), 1u);
  EXPECT_NE(schedule.hash(), BucketSchedule(plan, order, 15, 1).hash());
  EXPECT_EQ(BucketSchedule(plan, order, 1 << 20, 1 << 20).size(), 1u);
}

}  // namespace
}  // namespace tutti::test
