// What is printed at the start comes once, not from each worker.

#include <gmock/gmock.h>

#include "support/debug_log.h"
#include "support/log_capture.h"
#include "torch/training.h"

namespace tutti::test::start_line_cases {
namespace {

TEST(StartLine, OfADataParallelComesFromRankZeroAlone) {
  on_workers(3, [](const Job& job) {
    const LogCapture log;
    auto model = mlp();
    const DataParallel parallel(job, *model);
    EXPECT_EQ(log.count("data parallel: "), job.rank() == 0 ? 1 : 0);
  });
}

TEST(StartLine, OfAnAveragedParallelComesFromRankZeroAlone) {
  on_workers(3, [](const Job& job) {
    const LogCapture log;
    auto model = mlp();
    AveragedParallel parallel(job, *model, local_sgd(1));
    parallel.average_parameters();
    EXPECT_EQ(log.count("data parallel: "), job.rank() == 0 ? 1 : 0);
  });
}

// It was 350 to 700 characters long.
// findings-3: D5
TEST(StartLine, IsShortAndTheLongOneIsForWhoAsks) {
  on_workers(1, [](const Job& job) {
    const auto lengths = [&] {
      const LogCapture log;
      auto model = mlp();
      { const Trainer trainer(job, *model, Adam{}, {.shards = 4, .seed = 1}); }
      { const AveragedParallel parallel(job, *model, local_sgd(1)); }
      { const DataParallel parallel(job, *model); }
      std::vector<std::size_t> lengths;
      for (const auto& line : log.lines())
        if (line.starts_with("info: ") || line.starts_with("debug: "))
          lengths.push_back(line.substr(line.find(' ') + 1).size());
      return lengths;
    };
    EXPECT_THAT(lengths(),
                ::testing::AllOf(::testing::SizeIs(3), ::testing::Each(::testing::Le(120U))));
    const DebugLog debug;
    EXPECT_THAT(lengths(),
                ::testing::AllOf(::testing::SizeIs(6), ::testing::Contains(::testing::Gt(200U))));
  });
}

// With the default of one shard, two of three workers did nothing, and no line said so.
TEST(StartLine, RankZeroWarnsOfWorkersWithoutAShard) {
  on_workers(3, [](const Job& job) {
    const LogCapture log;
    const int expected = job.rank() == 0 ? 1 : 0;
    auto model = mlp();
    { const Trainer trainer(job, *model, Sgd{.lr = 0.1}, {}); }
    EXPECT_EQ(log.count("\"model\": of 3 workers these compute no shard: 1 2; a step has 1 of"),
              expected);
    { const Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 4}); }
    EXPECT_EQ(log.count("compute no shard: 2; a step has 4 of them"), expected);
    { const Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 3}); }
    EXPECT_EQ(log.count("compute no shard"), 2 * expected);
  });
}

}  // namespace
}  // namespace tutti::test::start_line_cases
