// The mean of buffers over the shards that ran, against a sum in the test.

#include "sync/step/buffer_mean.h"

#include <gtest/gtest.h>

#include <vector>

#include "comm/on_hosts.h"
#include "support/thread_hosts.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/nodes/logical_workers.h"
#include "sync/plan/assignment.h"

namespace tutti::test {
namespace {

const std::vector<std::size_t> kBufferCounts = {3, 65, 1};
constexpr std::int64_t kBufferShards = 6;
constexpr std::int64_t kIdle = 4;  // this shard does not run

std::vector<TensorSpec> specs() {
  std::vector<TensorSpec> all;
  const auto plan = plan_of(kBufferCounts);
  for (const auto& entry : plan.parameters()) all.push_back(entry.spec);
  return all;
}

Values before_of(std::size_t b) { return random_values(b + 5, kBufferCounts[b]); }
/// No shard changes the last buffer.
Values after_of(std::int64_t shard, std::size_t b) {
  if (b == 2) return before_of(b);
  return random_values(static_cast<std::uint64_t>(shard) * 7 + b, kBufferCounts[b]);
}

TEST(BufferMean, IsTakenAlongTheTreeOverTheShardsThatRan) {
  const auto logical = logical_workers(kBufferShards, 2);
  for (const auto& [workers, hosts] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {3, 1}, {5, 1}, {8, 1}, {3, 2}, {5, 3}}) {
    const auto options = hosts > 1 ? on(even_hosts(workers, hosts)) : ThreadOptions();
    const auto body = [&, workers = workers](const Job& job) {
      const Group group(job);
      StepMemory memory(group, "model");
      BufferMean mean(memory, specs(), {logical[1].begin}, logical.size(), 1, "model");
      const auto mine =
          assign_shards(kBufferShards, workers)[static_cast<std::size_t>(group.rank())];
      for (int step = 0; step < 2; ++step) {
        mean.open(mine.begin);
        for (auto s = mine.begin; s < mine.end; ++s) {
          if (s == kIdle) {
            mean.skip();
            continue;
          }
          std::vector<Values> after;
          std::vector<Values> before;
          std::vector<const void*> after_at;
          std::vector<const void*> before_at;
          for (std::size_t b = 0; b < kBufferCounts.size(); ++b) {
            after.push_back(after_of(s, b));
            before.push_back(before_of(b));
          }
          for (std::size_t b = 0; b < kBufferCounts.size(); ++b) {
            after_at.push_back(after[b].data());
            before_at.push_back(before[b].data());
          }
          mean.take(s < logical[1].begin ? 0 : 1, after_at, before_at);
        }
        mean.publish();
        group.barrier();
        mean.barrier();
        const auto halves = nodes_of(mean.nodes(), logical);
        for (std::size_t b = 0; b < kBufferCounts.size(); ++b) {
          EXPECT_EQ(mean.changed(b), b != 2) << workers << " workers, buffer " << b;
          for (std::size_t l = 0; l < 2; ++l) EXPECT_EQ(mean.changed(b, l), b != 2);
          const auto expect_mean = [&](ShardRange shards, NodeRange nodes) {
            std::vector<Leaf> leaves;
            std::vector<double> weights;
            for (std::int64_t s = 0; s < kBufferShards; ++s) {
              const bool counts = s >= shards.begin && s < shards.end && s != kIdle;
              leaves.emplace_back();
              if (counts) leaves.back().emplace_back(after_of(s, b));
              if (!counts) leaves.back().emplace_back();
              weights.push_back(counts ? 1 : 0);
            }
            double ran = 0;
            for (const auto weight : weights) ran += weight;
            Values got(kBufferCounts[b]);
            mean.mean(b, nodes, got.data());
            EXPECT_EQ(got, *reduced(leaves, weights, 0, ran)) << workers << " workers, b" << b;
          };
          expect_mean({0, kBufferShards}, {0, mean.nodes().size()});
          expect_mean(logical[0], halves[0]);
          expect_mean(logical[1], halves[1]);
        }
        group.barrier();
      }
    };
    run_thread_ranks(workers, body, options);
  }
}

TEST(BufferMean, OfNoShardThatRanLeavesWhatIsThereAndEachStepBeginsAnew) {
  const auto logical = logical_workers(kBufferShards, 2);
  run_thread_ranks(2, [&](const Job& job) {
    const Group group(job);
    StepMemory memory(group, "model");
    BufferMean mean(memory, specs(), {logical[1].begin}, logical.size(), 1, "model");
    const auto mine = assign_shards(kBufferShards, 2)[static_cast<std::size_t>(group.rank())];
    for (const bool changes : {true, false}) {
      mean.open(mine.begin);
      for (auto s = mine.begin; s < mine.end; ++s) {
        if (s >= logical[1].begin) {
          mean.skip();
          continue;
        }
        std::vector<Values> all;
        for (std::size_t b = 0; b < kBufferCounts.size(); ++b) {
          all.push_back(before_of(b));
          all.push_back(changes ? after_of(s, b) : before_of(b));
        }
        const std::vector<const void*> before = {all[0].data(), all[2].data(), all[4].data()};
        const std::vector<const void*> after = {all[1].data(), all[3].data(), all[5].data()};
        mean.take(0, after, before);
      }
      mean.publish();
      group.barrier();
      mean.barrier();
      EXPECT_EQ(mean.changed(0), changes);
      EXPECT_EQ(mean.changed(0, 0), changes);
      EXPECT_FALSE(mean.changed(0, 1));
      const Values was = {1, 2, 3};
      auto got = was;
      mean.mean(0, nodes_of(mean.nodes(), logical)[1], got.data());
      EXPECT_EQ(got, was);
      group.barrier();
    }
  });
}

}  // namespace
}  // namespace tutti::test
