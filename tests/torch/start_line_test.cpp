// What is printed at the start comes once, not from each worker.

#include "support/log_capture.h"
#include "training.h"

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

TEST(StartLine, OfADataParallelWithAStrategyComesFromRankZeroAlone) {
  on_workers(3, [](const Job& job) {
    const LogCapture log;
    auto model = mlp();
    DataParallel parallel(job, *model, {.strategy = local_sgd(1)});
    parallel.meet();
    EXPECT_EQ(log.count("data parallel: "), job.rank() == 0 ? 1 : 0);
  });
}

}  // namespace
}  // namespace tutti::test::start_line_cases
