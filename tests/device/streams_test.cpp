// Held streams run what is asked for and no more; each other stream has run as far as it can.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <thread>

#include "device/device_fixture.h"

namespace tutti::test_device {
namespace {

class DeviceStreams : public DeviceTest {
 protected:
  /// One piece of work.
  void work_on(const c10::Stream& stream) {
    const c10::StreamGuard on(stream);
    number_.add_(1);
  }
  /// Pieces of work that have run since the last call.
  std::int64_t ran() {
    const auto now = counters().ran;
    return now - std::exchange(ran_, now);
  }
  void TearDown() override { synchronize(); }

  at::Tensor number_ = torch::zeros({3}, device());
  std::int64_t ran_ = 0;
};

TEST_F(DeviceStreams, held_stream_runs_when_it_is_synchronised_and_the_other_at_once) {
  for (const auto held : kProfiles) {
    hold(held);
    const auto side = side_stream();
    const auto late = held == Held::kSideStreams ? side : default_stream();
    const auto early = held == Held::kSideStreams ? default_stream() : side;
    ran();
    work_on(late);
    EXPECT_EQ(ran(), 0);
    work_on(early);
    EXPECT_EQ(ran(), 1);
    early.synchronize();
    EXPECT_EQ(ran(), 0);
    late.synchronize();
    EXPECT_EQ(ran(), 1);
  }
}

TEST_F(DeviceStreams, a_wait_for_an_event_runs_nothing_and_keeps_the_order) {
  const auto first = side_stream();
  const auto second = side_stream();
  auto recorded = event();
  ran();
  work_on(first);
  recorded.record(first);
  work_on(first);
  second.wait(recorded);
  work_on(second);
  EXPECT_EQ(ran(), 0);
  second.synchronize();
  EXPECT_EQ(ran(), 2);  // without what follows the event
  first.synchronize();
  EXPECT_EQ(ran(), 1);
}

TEST_F(DeviceStreams, an_early_stream_that_waits_for_a_late_one_is_late_as_well) {
  const auto side = side_stream();
  auto recorded = event();
  ran();
  work_on(side);
  recorded.record(side);
  default_stream().wait(recorded);
  work_on(default_stream());
  EXPECT_EQ(ran(), 0);
  recorded.synchronize();
  EXPECT_EQ(ran(), 2);
}

TEST_F(DeviceStreams, third_query_finds_it_done) {
  const auto side = side_stream();
  auto recorded = event();
  for (int round = 0; round < 3; ++round) {
    work_on(side);
    recorded.record(side);
    EXPECT_FALSE(recorded.query());
    EXPECT_FALSE(recorded.query());
    EXPECT_TRUE(recorded.query());
    work_on(side);
    EXPECT_TRUE(recorded.query());
    EXPECT_FALSE(side.query());
    EXPECT_FALSE(side.query());
    EXPECT_TRUE(side.query());
  }
}

TEST_F(DeviceStreams, an_event_that_nobody_recorded_holds_nobody) {
  const auto side = side_stream();
  const auto never = event();
  ran();
  work_on(side);
  EXPECT_TRUE(never.query());
  never.synchronize();
  default_stream().wait(never);
  work_on(default_stream());
  EXPECT_EQ(ran(), 1);
}

TEST_F(DeviceStreams, a_wait_is_for_the_recording_that_it_saw) {
  const auto first = side_stream();
  const auto second = side_stream();
  auto recorded = event();
  ran();
  work_on(first);
  recorded.record(first);
  second.wait(recorded);
  work_on(first);
  recorded.record(first);
  second.synchronize();
  EXPECT_EQ(ran(), 1);
  recorded.synchronize();
  EXPECT_EQ(ran(), 1);
}

TEST_F(DeviceStreams, item_and_blocking_copies_wait_for_the_current_stream_alone) {
  const auto current = side_stream();
  const auto other = side_stream();
  ran();
  work_on(other);
  const c10::StreamGuard on(current);
  work_on(current);
  EXPECT_EQ(number_[0].item<float>(), 1);
  EXPECT_EQ(ran(), 1);
  work_on(current);
  EXPECT_EQ(number_.cpu()[0].item<float>(), 2);
  EXPECT_EQ(ran(), 2);
  synchronize();
  EXPECT_EQ(ran(), 1);
}

TEST_F(DeviceStreams, several_threads_may_ask_at_once) {
  const auto first = side_stream();
  const auto second = side_stream();
  auto recorded = event();
  ran();
  for (int k = 0; k < 200; ++k) {
    work_on(first);
    recorded.record(first);
    second.wait(recorded);
    work_on(second);
    recorded.record(second);
    first.wait(recorded);
  }
  std::thread other([&] { first.synchronize(); });
  second.synchronize();
  other.join();
  EXPECT_EQ(ran(), 400);
  EXPECT_EQ(number_[0].item<float>(), 400);
}

TEST_F(DeviceStreams, a_copy_to_another_device_is_ordered_on_both) {
  for (const auto held : kProfiles) {
    hold(held);
    auto there = torch::ones({5}, device(1));
    there.copy_(torch::full({5}, 2, device(0)));
    there.mul_(3);
    EXPECT_EQ(there.sum().item<float>(), 30);
  }
}

TEST_F(DeviceStreams, what_fails_on_the_device_is_thrown_by_every_later_wait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [] {
    hold(Held::kDefaultStreams);
    const auto rows = torch::zeros({4, 2}, device());
    const auto row = torch::embedding(rows, torch::full({1}, 7, torch::kLong).to(device()));
    for (int k = 0; k < 2; ++k) {
      try {
        synchronize();
      } catch (const c10::Error& error) {
        std::fputs(error.what_without_backtrace(), stderr);
        std::fputs(". ", stderr);
      }
    }
    std::_Exit(0);
  };
  const std::string text = "the test device failed earlier: index out of range in self";
  EXPECT_EXIT(fail(), ::testing::ExitedWithCode(0), text + "[^.]*\\. " + text);
}

}  // namespace
}  // namespace tutti::test_device
