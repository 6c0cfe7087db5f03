// Control memory that objects of a step add for themselves.

#include "sync/nodes/step_memory.h"

#include <atomic>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/thread_ranks.h"

namespace tutti::test {
namespace {

using Numbers = Section<std::uint64_t>;

TEST(StepMemory, EachWorkerReadsWhatTheOthersWroteInSectionsOfTheirOwn) {
  for (const int workers : {1, 2, 3, 5}) {
    run_thread_ranks(workers, [&](const Job& job) {
      const Group group(job);
      StepMemory memory(group, "model");
      // The second and the fourth do not fit into what is left of an arena.
      const std::vector<std::size_t> counts = {1, std::size_t{1} << 18, 65, std::size_t{1} << 19};
      std::vector<WorkerParts<Numbers>> all;
      for (const auto count : counts) all.push_back(memory.add<Numbers>(count));
      const auto common = memory.add_common<Section<std::atomic<std::uint64_t>>>(3);
      const auto rank = static_cast<std::uint64_t>(group.rank());
      for (std::size_t k = 0; k < counts.size(); ++k) {
        const auto& mine = all[k].mine();
        ASSERT_EQ(mine.size(), counts[k]);
        EXPECT_EQ(mine.front() + mine.back(), 0U);
        mine.front() = mine.back() = 100 * k + rank + 1;
      }
      common[2] += rank + 1;
      group.barrier();
      for (std::size_t k = 0; k < counts.size(); ++k) {
        ASSERT_EQ(all[k].size(), static_cast<std::size_t>(workers));
        for (std::uint64_t r = 0; r < all[k].size(); ++r) {
          EXPECT_EQ(all[k][r].front(), 100 * k + r + 1);
          EXPECT_EQ(all[k][r].back(), 100 * k + r + 1);
        }
      }
      EXPECT_EQ(common[2], static_cast<std::uint64_t>(workers * (workers + 1) / 2));
      EXPECT_EQ(common[0] + common[1], 0U);
      group.barrier();
    });
  }
}

}  // namespace
}  // namespace tutti::test
