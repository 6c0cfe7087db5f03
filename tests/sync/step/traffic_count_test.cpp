// What steps cost, as counts that are written down here.

#include "sync/step/traffic_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;

TEST(TrafficCount, OnlyStepsThatEndAreAddedUp) {
  const auto plan = plan_of({10, 20, 30});
  TrafficCount count(plan, {{0, 1}, {2}});
  for (int step = 0; step < 3; ++step) {
    count.begin();
    EXPECT_EQ(count.bucket(0).bytes, 0u) << "of the step before";
    count.bucket(0).bytes = 100;
    count.bucket(1).messages = 2;
    count.bucket(1).values = 3;
    count.bucket(1).touched = 30;
    if (step != 1) count.end(2);
  }
  const auto& report = count.report();
  EXPECT_EQ(report.steps, 2);
  EXPECT_EQ(report.collectives, 4);
  EXPECT_EQ(report.all_steps[0].parameters, "p0 … p1 (2)");
  EXPECT_EQ(report.all_steps[0].elements, 30);
  EXPECT_EQ(report.all_steps[0].bytes, 200u);
  EXPECT_EQ(report.all_steps[1].messages, 4);
  EXPECT_EQ(report.all_steps[1].values, 6);
  EXPECT_EQ(report.all_steps[1].touched, 60);
  EXPECT_EQ(report.last_step[1].messages, 2);
  const auto both = merged(report, report);
  EXPECT_EQ(both.steps, 2);
  EXPECT_EQ(both.all_steps.size(), 4u);
}

// Each worker hands in what it touched once, however many nodes it has, and gets back every sum.
TEST(PlainTraffic, IsOneMessageOfEachWorkerAndOneSumForEach) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job);
    StepMemory memory(group, "model");
    NodeStore store(memory, plan_of({10, 20, 30}), {.arena_label = "nodes"});
    auto& leaves = store.leaves();
    leaves.set_start(2 * group.rank() + 1);  // two leaves that do not become one node
    for (int leaf = 0; leaf < 2; ++leaf) {
      const Values values(30, 1.0f);
      leaves.begin_leaf(1);
      leaves.write(0, values.data(), true);
      if (group.rank() == 1 && leaf == 0) leaves.write(1, values.data(), true);
      leaves.end_leaf();
    }
    store.boards().mine().header().leaves = 2;
    store.publish();
    group.barrier();
    std::vector<HeldNode> nodes;
    std::int64_t all = 0;
    for (int r = 0; r < 3; ++r) append_nodes(nodes, all, r, store.boards().of(r).header());
    ASSERT_EQ(nodes.size(), 6u);
    store.collect(nodes, all);
    PlainTraffic traffic(store.plan(), {{0, 1}, {2}}, 3);
    traffic.note(store);
    EXPECT_EQ(traffic.report().steps, 0);
    traffic.count();
    const auto& step = traffic.report().last_step;
    EXPECT_EQ(step[0].messages, 3);
    EXPECT_EQ(step[0].dense_messages, 3);
    EXPECT_EQ(step[0].values, 3 * 10 + 20);
    EXPECT_EQ(step[0].bytes, 4u * (3 * 10 + 20) + 4u * 3 * (10 + 20));
    EXPECT_EQ(step[0].bytes_dense, step[0].bytes);
    EXPECT_EQ(step[1].messages, 0);
    EXPECT_EQ(step[1].bytes, 0u);
    EXPECT_THAT(traffic.report().table(), HasSubstr("1 steps, 1 collectives"));
    group.barrier();
  });
}

}  // namespace
}  // namespace tutti::test
