#include "run/data/epoch_watch.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(EpochWatch, TellsOnceOfALoopWhoseStepsAskForNoSamples) {
  EpochWatch watch;
  for (std::int64_t step = 1; step < EpochWatch::kPatience; ++step) {
    EXPECT_FALSE(watch.asked(step));
    EXPECT_FALSE(watch.asked(step)) << "asked twice after one step";
  }
  EXPECT_TRUE(watch.asked(EpochWatch::kPatience));
  for (std::int64_t step = 1; step < 300; ++step) {
    EXPECT_FALSE(watch.asked(EpochWatch::kPatience + step));
  }
}

TEST(EpochWatch, BeginsAnewWhereSamplesAreAskedFor) {
  EpochWatch watch;
  for (std::int64_t step = 1; step < EpochWatch::kPatience; ++step) EXPECT_FALSE(watch.asked(step));
  watch.moved(EpochWatch::kPatience);
  for (std::int64_t step = 1; step < EpochWatch::kPatience; ++step) {
    EXPECT_FALSE(watch.asked(EpochWatch::kPatience + step)) << step;
  }
  EXPECT_TRUE(watch.asked(2 * EpochWatch::kPatience));
}

}  // namespace
}  // namespace tutti
