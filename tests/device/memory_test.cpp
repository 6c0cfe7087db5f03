// The device's memory is out of the host's reach, and poisoned wherever nobody may rely on it.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <csignal>
#include <optional>

#include "device/device_fixture.h"

namespace tutti::test_device {
namespace {

using DeviceMemory = DeviceTest;

TEST_F(DeviceMemory, host_code_that_touches_it_dies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto tensor = torch::zeros({16}, device());
  float value = 0;
  EXPECT_EXIT(std::memcpy(&value, tensor.data_ptr(), sizeof(value)),
              ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(std::memset(tensor.data_ptr(), 0, 4), ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(DeviceMemory, is_nan_before_it_is_written) {
  for (int k = 0; k < 2; ++k) {  // the second time out of what was freed
    auto tensor = torch::empty({1000}, device());
    EXPECT_TRUE(tensor.cpu().isnan().all().item<bool>());
    tensor.fill_(1);
  }
}

/// What a side stream reads of a tensor that is freed at once, and whether the next tensor lies
/// there.
struct Read {
  bool right = false;
  bool reused = false;
};
Read read_by_side_stream(const c10::Stream& side, bool is_recorded) {
  const c10::impl::VirtualGuardImpl guard(device().type());
  std::optional<at::Tensor> tensor = torch::ones({64}, device());
  const auto* const address = tensor->data_ptr();
  const auto host = torch::zeros({64}).pin_memory();
  c10::Event written(device().type());
  written.record(guard.getStream(device()));
  side.wait(written);
  {
    const c10::StreamGuard on(side);
    host.copy_(*tensor, true);
  }
  if (is_recorded) guard.recordDataPtrOnStream(tensor->storage().data_ptr(), side);
  tensor.reset();
  const bool reused = torch::empty({64}, device()).data_ptr() == address;
  side.synchronize();
  return {host.eq(1).all().item<bool>(), reused};
}

TEST_F(DeviceMemory, that_is_freed_is_lost_to_other_streams_unless_they_are_recorded) {
  const auto side = side_stream();
  const auto unrecorded = read_by_side_stream(side, false);
  EXPECT_FALSE(unrecorded.right);
  EXPECT_TRUE(unrecorded.reused);
  const auto recorded = read_by_side_stream(side, true);
  EXPECT_TRUE(recorded.right);
  EXPECT_FALSE(recorded.reused);
}

TEST_F(DeviceMemory, that_another_stream_used_returns_when_that_has_passed) {
  const auto side = side_stream();
  auto tensor = torch::ones({77, 7}, device());
  const auto* const address = tensor.data_ptr();
  {
    const c10::StreamGuard on(side);
    tensor.mul_(2);
  }
  guard().recordDataPtrOnStream(tensor.storage().data_ptr(), side);
  tensor.reset();
  EXPECT_NE(torch::empty({77, 7}, device()).data_ptr(), address);
  side.synchronize();
  const auto next = torch::empty({77, 7}, device()), one_more = torch::empty({77, 7}, device());
  EXPECT_TRUE(next.data_ptr() == address || one_more.data_ptr() == address);
}

TEST_F(DeviceMemory, a_copy_of_memory_that_is_not_pinned_blocks_and_is_counted) {
  const auto here = torch::ones({100}, device());
  const auto host = torch::zeros({100});
  const auto* const begin = host.const_data_ptr<float>();
  const auto count = [&](const at::Tensor& to, const at::Tensor& from) {
    const auto before = counters();
    at::Tensor(to).copy_(from, /*non_blocking=*/true);
    const auto after = counters();
    EXPECT_EQ(after.blocked - before.blocked, after.unpinned - before.unpinned);
    return after.unpinned - before.unpinned;
  };
  EXPECT_EQ(count(host, here), 1);
  EXPECT_EQ(count(here, host), 1);
  pin(begin, 99 * sizeof(float));
  EXPECT_EQ(count(host, here), 1);
  EXPECT_EQ(count(host.slice(0, 0, 99), here.slice(0, 0, 99)), 0);
  unpin(begin);
  pin(begin, 100 * sizeof(float));
  EXPECT_TRUE(host.is_pinned());
  EXPECT_EQ(count(host, here), 0);
  synchronize();
  unpin(begin);
  EXPECT_FALSE(host.is_pinned());
  EXPECT_EQ(count(host, here), 1);
}

TEST_F(DeviceMemory, pinned_memory_of_libtorch_lives_until_it_is_copied) {
  hold(Held::kDefaultStreams);
  const auto before = counters().unpinned;
  auto tensor = torch::arange(1000.0).pin_memory().to(device(), /*non_blocking=*/true);
  EXPECT_EQ(tensor.sum().item<float>(), 499500);
  EXPECT_EQ(counters().unpinned, before);
}

TEST_F(DeviceMemory, that_is_used_up_is_out_of_memory) {
  EXPECT_THROW(torch::empty({std::int64_t{1} << 31}, device()), c10::OutOfMemoryError);
  EXPECT_EQ(torch::ones({3}, device()).sum().item<float>(), 3);
}

TEST_F(DeviceMemory, a_tensor_of_the_host_among_those_of_the_device_is_refused) {
  const auto here = torch::ones({3}, device());
  EXPECT_THROW(here + torch::ones({3}), c10::Error);
  EXPECT_EQ((here + torch::scalar_tensor(2)).sum().item<float>(), 9);
}

}  // namespace
}  // namespace tutti::test_device
