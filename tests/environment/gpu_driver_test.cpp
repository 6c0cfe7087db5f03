// What NVIDIA's driver tells, by a library that stands in for it.

#include "environment/gpu_driver.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "environment/stand_in_driver.h"

namespace tutti::test {
namespace {

/// Whether `holds` in a process of its own.
void expect_apart(bool (*holds)()) {
  EXPECT_EXIT(std::_Exit(holds() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

bool sets_workspace() {
  ::unsetenv(kCublasWorkspace);
  set_cublas_workspace();
  return is_cublas_deterministic();
}

TEST(GpuDriver, IsNamedWhereItIsMissing) {
  if (::dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has it";
  const auto driver = read_gpu_driver();
  EXPECT_TRUE(driver.gpus.empty());
  EXPECT_THAT(driver.problem, ::testing::HasSubstr("libcuda.so.1"));
  EXPECT_FALSE(has_gpu_context());
}

TEST(GpuDriver, TellsWhatEachGpuIs) {
  expect_apart([] {
    load_stand_in_driver(false);
    const auto driver = read_gpu_driver();
    return driver.problem.empty() && driver.cuda == 13000 && driver.gpus.size() == 2 &&
           driver.gpus[1].name == "Stand-in 1" && driver.gpus[1].multiprocessors == 101 &&
           driver.gpus[1].bytes == std::uint64_t{3} << 30 &&
           driver.gpus[1].uuid == "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1";
  });
}

TEST(CublasWorkspace, IsSetUnlessAGpuIsInUse) {
  expect_apart([] { return sets_workspace(); });
  expect_apart([] {
    load_stand_in_driver(false);
    return sets_workspace();
  });
  expect_apart([] {
    load_stand_in_driver(true);
    return !sets_workspace();
  });
}

TEST(CublasWorkspace, KeepsWhatIsSet) {
  expect_apart([] {
    ::setenv(kCublasWorkspace, ":0:0", 1);
    set_cublas_workspace();
    return !is_cublas_deterministic();
  });
  expect_apart([] {
    ::setenv(kCublasWorkspace, ":16:8", 1);
    return is_cublas_deterministic();
  });
}

}  // namespace
}  // namespace tutti::test
