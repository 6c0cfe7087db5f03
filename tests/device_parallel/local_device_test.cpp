// The device of a worker, by its number on its host.

#include "device_parallel/device_workers.h"

namespace tutti::test::local_device_cases {
namespace {

TEST(LocalDevice, IsCountedAround) {
  on_device_workers(3, test_device::Held::kSideStreams, [](const Job& job) {
    EXPECT_EQ(local_device(job), test_device::device(job.rank() % 2));
  });
}

TEST(LocalDevice, WithoutOneWhatIsToBeLoadedIsNamed) {
  on_workers(1, [](const Job& job) {
    EXPECT_THAT(text_of<InvalidArgument>([&] { local_device(job); }),
                ::testing::HasSubstr("LD_PRELOAD"));
  });
}

}  // namespace
}  // namespace tutti::test::local_device_cases
