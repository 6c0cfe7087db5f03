// Who audits whom, and what workers tell each other for it.

#include "sync/step/audit_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "support/thread_ranks.h"

namespace tutti::test {
namespace {

// promise: trainer_options.h#audit_every
TEST(AuditPair, WorkersTakeTurnsThenTheShardsOfEach) {
  for (int workers = 1; workers <= 9; ++workers) {
    for (const std::int64_t shards : {1, 2, 5, 8, 23}) {
      SCOPED_TRACE(testing::Message() << workers << " workers, " << shards << " shards");
      const auto ranges = assign_shards(shards, workers);
      std::set<int> with_shards;
      for (int r = 0; r < workers; ++r) {
        if (ranges[static_cast<std::size_t>(r)].count() > 0) with_shards.insert(r);
      }
      const auto count = static_cast<std::int64_t>(with_shards.size());
      std::set<int> seen;
      for (std::int64_t turn = 0; turn < (count + 1) / 2; ++turn) {
        const auto pair = audit_pair_of(turn, ranges);
        seen.insert(pair.owner);
        seen.insert(pair.auditor);
      }
      EXPECT_TRUE(count == 1 || seen == with_shards) << "not all took part early";
      std::map<std::int64_t, int> times;
      std::int64_t most = 0;
      for (const auto& range : ranges) most = std::max(most, range.count());
      for (std::int64_t turn = 0; turn < count * most; ++turn) {
        const auto pair = audit_pair_of(turn, ranges);
        const auto& range = ranges[static_cast<std::size_t>(pair.owner)];
        EXPECT_GE(pair.shard, range.begin);
        EXPECT_LT(pair.shard, range.end);
        EXPECT_EQ(pair.owner == pair.auditor, workers == 1);
        ++times[pair.shard];
      }
      EXPECT_EQ(static_cast<std::int64_t>(times.size()), shards) << "a shard is never audited";
    }
  }
}

TEST(AuditPair, OneWorkerWithAllShardsIsAuditedByAllOthers) {
  const std::vector<ShardRange> ranges{{0, 0}, {0, 2}, {2, 2}, {2, 2}};
  std::set<int> auditors;
  for (std::int64_t turn = 0; turn < 6; ++turn) {
    const auto pair = audit_pair_of(turn, ranges);
    EXPECT_EQ(pair.owner, 1);
    EXPECT_EQ(pair.shard, turn % 2);
    auditors.insert(pair.auditor);
  }
  EXPECT_EQ(auditors, (std::set<int>{0, 2, 3}));
}

TEST(ShardPrint, TheFirstDifferenceIsNamedAndTheOthersCounted) {
  const ShardPrint one{{{"gradient of \"a\"", 1}, {"gradient of \"b\"", 2}, {"metric \"loss\"", 3}},
                       0.5};
  EXPECT_EQ(differences(one, one), "");
  auto other = one;
  other.items[1].hash = 7;
  EXPECT_EQ(differences(one, other), "the gradient of \"b\"");
  other.items[2].hash = 7;
  other.loss = 0.75;
  EXPECT_EQ(differences(one, other), "the gradient of \"b\" and 1 other thing (loss 0.5 and 0.75)");
  other.items[0].hash = 0;
  EXPECT_EQ(differences(one, other),
            "the gradient of \"a\" and 2 other things (loss 0.5 and 0.75)");
  // What only one of them has.
  other = one;
  other.items.pop_back();
  other.loss.reset();
  EXPECT_EQ(differences(one, other), "the metric \"loss\"");
  EXPECT_EQ(differences(other, one), "the metric \"loss\"");
}

TEST(AuditBoard, HandsOverAndPublishesToAll) {
  run_thread_ranks(3, [](const Job& job) {
    const Group group(job, "audit");
    StepMemory memory(group, "model");
    AuditBoard board(memory);
    const std::vector<std::byte> saved(5, std::byte{7});
    const ShardPrint print{{{"gradient of \"a\"", 3}, {"", 0}}, 0.25};
    const ShardPrint none;
    if (job.rank() == 1) {
      EXPECT_TRUE(board.hand_over(saved));
      board.publish(std::vector{print, none});
    }
    // As much as nobody has room for is not handed over, in part neither.
    const std::vector<std::byte> much((std::size_t{64} << 20) + 1);
    EXPECT_TRUE(job.rank() != 2 || !board.hand_over(much));
    group.barrier();
    const auto handed = board.handed_by(1);
    ASSERT_TRUE(handed);
    EXPECT_EQ(std::vector<std::byte>(handed->begin(), handed->end()), saved);
    EXPECT_FALSE(board.handed_by(2));
    EXPECT_EQ(board.of(1), (std::vector{print, none}));
    group.barrier();
  });
}

}  // namespace
}  // namespace tutti::test
