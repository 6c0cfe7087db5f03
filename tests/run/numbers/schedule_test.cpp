#include "tutti/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tutti/error.h"

namespace tutti::test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// promise: schedule.h#Schedule
TEST(Schedule, ConstantUnlessSaidOtherwise) {
  const Schedule schedule;
  EXPECT_EQ(schedule(1), 1);
  EXPECT_EQ(schedule(1000000), 1);
  EXPECT_EQ(schedule.text(), "constant");
}

// promise: schedule.h#warm_up
TEST(Schedule, WarmUpGrowsLinearlyAndHandsOver) {
  const auto alone = Schedule::warm_up(4);
  EXPECT_EQ(alone(1), 0.25);
  EXPECT_EQ(alone(3), 0.75);
  EXPECT_EQ(alone(4), 1);
  EXPECT_EQ(alone(5), 1);
  EXPECT_EQ(alone.text(), "warm-up over 4, then constant");
  const Schedule after("echo", [](std::int64_t step) { return static_cast<double>(step); });
  const auto both = Schedule::warm_up(3, after);
  EXPECT_EQ(both(3), 1);
  EXPECT_EQ(both(4), 1);
  EXPECT_EQ(both(9), 6);
  EXPECT_EQ(both.text(), "warm-up over 3, then echo");
}

// cos 0, π/3, π/2, 2π/3 are known without a cosine.
// promise: schedule.h#cosine
TEST(Schedule, CosineFallsFromOneToItsFloor) {
  const auto schedule = Schedule::cosine(6, 0.2);
  EXPECT_EQ(schedule(1), 1);
  EXPECT_NEAR(schedule(3), 0.2 + 0.8 * 0.75, 1e-15);
  EXPECT_NEAR(schedule(4), 0.2 + 0.8 * 0.5, 1e-15);
  EXPECT_NEAR(schedule(5), 0.2 + 0.8 * 0.25, 1e-15);
  EXPECT_GT(schedule(6), 0.2);
  EXPECT_EQ(schedule(7), 0.2);
  EXPECT_EQ(schedule(700), 0.2);
  for (std::int64_t step = 1; step < 7; ++step) EXPECT_LT(schedule(step + 1), schedule(step));
  EXPECT_EQ(schedule.text(), "cosine over 6 to 0.2");
  EXPECT_EQ(Schedule::cosine(1)(2), 0);
}

// promise: schedule.h#step_decay
TEST(Schedule, StepDecayMultipliesAtEveryBoundary) {
  const auto schedule = Schedule::step_decay(3, 0.5);
  double expected = 1;
  for (std::int64_t step = 1; step <= 30; ++step) {
    if (step > 1 && step % 3 == 1) expected *= 0.5;
    EXPECT_EQ(schedule(step), expected) << step;
  }
  EXPECT_EQ(schedule.text(), "decay by 0.5 every 3");
}

// promise: schedule.h#per_epoch
TEST(Schedule, PerEpochCountsEpochsInsteadOfSteps) {
  const auto schedule = Schedule::per_epoch(Schedule::step_decay(2, 0.5));
  EXPECT_EQ(schedule(1), 1);
  EXPECT_EQ(schedule(700, 1), 1);
  EXPECT_EQ(schedule(700, 2), 0.5);
  EXPECT_EQ(schedule(1, 5), 0.25);
  EXPECT_EQ(schedule.text(), "per epoch decay by 0.5 every 2");
  const auto warm = Schedule::warm_up(10, schedule);
  EXPECT_EQ(warm(5, 3), 0.5);
  EXPECT_EQ(warm(11, 4), 0.25);
  EXPECT_EQ(Schedule::per_epoch(Schedule::warm_up(4))(9, 1), 0.5);
}

// promise: schedule.h#Schedule
TEST(Schedule, UsersFunctionGetsTheStep) {
  const Schedule schedule(
      "inverse root", [](std::int64_t step) { return 1 / std::sqrt(static_cast<double>(step)); });
  EXPECT_EQ(schedule(16), 0.25);
  EXPECT_EQ(schedule.text(), "inverse root");
}

// promise: schedule.h#Schedule, schedule.h#text
TEST(Schedule, TextsTellParametersApart) {
  EXPECT_NE(Schedule::cosine(9, 0.1).text(), Schedule::cosine(9, std::nextafter(0.1, 1)).text());
  EXPECT_NE(Schedule::warm_up(3).text(), Schedule::warm_up(4).text());
  EXPECT_NE(Schedule::warm_up(3).text(), Schedule::warm_up(3, Schedule::cosine(3)).text());
}

// promise: schedule.h#cosine, schedule.h#step_decay, schedule.h#warm_up
TEST(Schedule, WhatMakesNoSenseIsRefused) {
  EXPECT_THAT([] { Schedule::warm_up(0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("warm-up over 0 steps")));
  EXPECT_THAT([] { Schedule::cosine(-1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("cosine over -1 steps")));
  EXPECT_THAT([] { Schedule::cosine(3, 1.5); },
              ThrowsMessage<InvalidArgument>(HasSubstr("to 1.5")));
  EXPECT_THAT([] { Schedule::cosine(3, NAN); },
              ThrowsMessage<InvalidArgument>(HasSubstr("to nan")));
  EXPECT_THAT([] { Schedule::step_decay(0, 0.1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("decay every 0 steps")));
  EXPECT_THAT([] { Schedule::step_decay(3, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("by 0:")));
  EXPECT_THAT([] { Schedule::step_decay(3, INFINITY); },
              ThrowsMessage<InvalidArgument>(HasSubstr("by inf:")));
  EXPECT_THAT([] { Schedule("", [](std::int64_t) { return 1.0; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("needs a name")));
  EXPECT_THAT([] { Schedule("none", nullptr); },
              ThrowsMessage<InvalidArgument>(HasSubstr("and a function")));
  EXPECT_THAT([] { Schedule()(0); }, ThrowsMessage<InvalidArgument>(HasSubstr("in step 0")));
}

// promise: schedule.h#Schedule
TEST(Schedule, BadFactorsNeverReachALearningRate) {
  const auto giving = [](double factor) {
    const Schedule schedule("mine", [=](std::int64_t) { return factor; });
    return [=] { Schedule::warm_up(2, schedule)(7); };
  };
  EXPECT_THAT(giving(NAN),
              ThrowsMessage<InvalidArgument>(HasSubstr("\"mine\" gives nan in step 5")));
  EXPECT_THAT(giving(-1), ThrowsMessage<InvalidArgument>(HasSubstr("gives -1")));
  EXPECT_THAT(giving(INFINITY), ThrowsMessage<InvalidArgument>(HasSubstr("gives inf")));
  EXPECT_NO_THROW(giving(0)());
}

}  // namespace
}  // namespace tutti::test
