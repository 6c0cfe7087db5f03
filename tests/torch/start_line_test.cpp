// What is printed at the start comes once, not from each worker.

#include "support/log_capture.h"
#include "training.h"

namespace tutti::test::start_line_cases {
namespace {

TEST(StartLine, OfADataParallelComesFromRankZeroAlone) {
  const LogCapture log;
  on_workers(3, [](const Job& job) {
    auto model = mlp();
    const DataParallel parallel(job, *model);
  });
  EXPECT_EQ(log.count("data parallel: "), 1);
}

TEST(StartLine, OfADataParallelWithAStrategyComesFromRankZeroAlone) {
  const LogCapture log;
  on_workers(3, [](const Job& job) {
    auto model = mlp();
    DataParallel parallel(job, *model, {.strategy = local_sgd(1)});
    parallel.meet();
  });
  EXPECT_EQ(log.count("data parallel: "), 1);
}

}  // namespace
}  // namespace tutti::test::start_line_cases
