// What workers tell each other of their shards, all together.

#include "sync/step/shard_board.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>

#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"

namespace tutti::test {
namespace {

TEST(GradientFacts, KeepTheEarliestBadShardAndItsFirstParameter) {
  GradientFacts facts;
  EXPECT_EQ(refusal_of(facts, plan_of({1, 1, 1})), "");
  facts.note_bad(4, 2);
  facts.note_bad(4, 1);
  facts.note_bad(4, 3);
  facts.note_bad(6, 0);
  EXPECT_EQ(facts.bad_shard, 4);
  EXPECT_EQ(facts.bad_parameter, 1);
  EXPECT_EQ(refusal_of(facts, plan_of({1, 1, 1})),
            "the gradient of \"p1\" in shard 4 is not finite");
}

TEST(GradientFacts, ASumMayOverflowWhereItsBoundOrQuotientIsNearTheRange) {
  const auto bound = [](double value) { return GradientFacts{.bound = value}; };
  EXPECT_FALSE(may_overflow(bound(1e30), 1));
  EXPECT_TRUE(may_overflow(bound(FLT_MAX), 1));
  EXPECT_TRUE(may_overflow(bound(1e30), 1e-30));
  EXPECT_TRUE(may_overflow(bound(HUGE_VAL), 1));
  EXPECT_TRUE(may_overflow(bound(NAN), 1));
}

TEST(ShardBoard, FactsAreThoseOfAllWorkersTogether) {
  for (const int workers : {1, 2, 3, 5}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const Group group(job);
      StepMemory memory(group, "model");
      ShardBoard board(memory);
      ShardHeader& mine = board.mine();
      mine = {};
      mine.all.bound = group.rank() + 1;
      mine.own[1].bound = 10;
      // The last worker has the first of all bad shards, the first one has none.
      if (group.rank() > 0) mine.all.note_bad(10 - group.rank(), group.rank());
      const std::string note = "from " + std::to_string(group.rank());
      std::memcpy(board.notes_area().data(), note.data(), note.size());
      mine.notes = note.size();
      group.barrier();
      const auto facts = board.facts();
      EXPECT_EQ(facts.bound, workers * (workers + 1) / 2.0);
      EXPECT_EQ(facts.bad_shard, workers == 1 ? -1 : 11 - workers);
      EXPECT_EQ(facts.bad_parameter, workers == 1 ? -1 : workers - 1);
      EXPECT_EQ(board.facts_of(1).bound, 10.0 * workers);
      EXPECT_EQ(board.facts_of(0).bound, 0);
      for (int r = 0; r < board.size(); ++r) {
        const auto notes = board.notes_of(r);
        EXPECT_EQ(std::string(reinterpret_cast<const char*>(notes.data()), notes.size()),
                  "from " + std::to_string(r));
      }
      group.barrier();
    });
  }
}

}  // namespace
}  // namespace tutti::test
