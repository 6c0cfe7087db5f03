// Flags of libtorch's while a model is on a device, and what workers compare of the device.

#include "device_parallel/device_workers.h"
#include "environment/gpu_driver.h"
#include "environment/stand_in_driver.h"
#include "support/log_capture.h"
#include "torch/device/device_arithmetic.h"

namespace tutti::test::determinism_cases {
namespace {

using test_device::Held;
using ::testing::AllOf;
using ::testing::HasSubstr;

bool are_deterministic() {
  const auto& context = at::globalContext();
  return context.deterministicAlgorithms() && context.deterministicCuDNN() &&
         !context.benchmarkCuDNN();
}

TEST(Determinism, FlagsAreSetWhileAModelOnADeviceIsTrained) {
  on_device_workers(2, Held::kSideStreams, [](const Job& job) {
    at::globalContext().setBenchmarkCuDNN(true);
    auto first = mlp(), second = mlp(), third = mlp(), fourth = mlp();
    for (auto* const each : {&first, &second, &third}) (*each)->to(local_device(job));
    {
      const DataParallel free(job, *third, {.name = "free", .deterministic = false});
      const DataParallel host(job, *fourth, {.name = "host"});
      EXPECT_FALSE(are_deterministic());
      auto one = std::make_unique<DataParallel>(job, *first, DataParallelOptions{.name = "one"});
      EXPECT_TRUE(are_deterministic());
      EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());
      const DataParallel two(job, *second, {.name = "two"});
      one.reset();
      EXPECT_TRUE(are_deterministic());
    }
    EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
    EXPECT_TRUE(at::globalContext().deterministicFillUninitializedMemory());
    EXPECT_TRUE(at::globalContext().benchmarkCuDNN());
  });
}

TEST(Determinism, OfTheProgramsOwnStays) {
  on_device_workers(1, Held::kSideStreams, [](const Job& job) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    auto model = mlp();
    model->to(local_device(job));
    {
      const DataParallel parallel(job, *model);
      EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
      EXPECT_TRUE(at::globalContext().deterministicFillUninitializedMemory());
    }
    EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
    EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
  });
}

TEST(Determinism, AnOperatorWithoutItIsRefusedByItsName) {
  on_device_workers(1, Held::kSideStreams, [](const Job& job) {
    auto model = mlp();
    model->to(local_device(job));
    const auto draw = [&] {
      auto x = torch::zeros({4});
      x.put_(torch::tensor({1, 1}), torch::tensor({1.0F, 2.0F}));
    };
    {
      const DataParallel parallel(job, *model);
      EXPECT_THAT(text_of<c10::Error>(draw), HasSubstr("put_"));
    }
    const DataParallel parallel(job, *model, {.deterministic = false});
    EXPECT_EQ(text_of<c10::Error>(draw), "");
  });
}

// An operator that is refused does not name the option: libtorch's text cannot.
TEST(Determinism, IsSaidAtTheStart) {
  on_device_workers(1, Held::kSideStreams, [](const Job& job) {
    const LogCapture log;
    auto one = mlp(), other = mlp();
    one->to(local_device(job));
    other->to(local_device(job));
    const DataParallel first(job, *one, {.name = "first"});
    const DataParallel second(job, *other, {.name = "second", .deterministic = false});
    EXPECT_EQ(log.count("4 parameters, 1 workers on test:0, deterministic operators alone "
                        "(DataParallelOptions::deterministic), sums by "),
              1);
    EXPECT_EQ(log.count("4 parameters, 1 workers on test:0, sums by "), 1);
  });
}

TEST(Determinism, GeneratorsOfTheDeviceThatStandApartAreNoticed) {
  for (const bool draws : {false, true}) {
    on_device_workers(2, Held::kSideStreams, [&](const Job& job) {
      const LogCapture log;
      torch::manual_seed(7);
      const auto where = local_device(job);
      if (draws && job.rank() == 1) torch::rand({1000}, where);
      auto model = mlp();
      model->to(where);
      DataParallel parallel(job, *model);
      const Batch batch(4, static_cast<std::uint64_t>(job.rank()));
      torch::mse_loss(model->forward(batch.x.to(where)), batch.y.to(where)).backward();
      EXPECT_EQ(log.count("torch's generator has one seed on all workers"),
                draws && job.rank() == 0 ? 1 : 0);
    });
  }
}

TEST(Determinism, HasToBeAskedForByAll) {
  on_device_workers(2, Held::kSideStreams, [](const Job& job) {
    auto model = mlp();
    model->to(local_device(job));
    EXPECT_THAT(text_of<Mismatch>([&] {
                  const DataParallel parallel(job, *model, {.deterministic = job.rank() == 0});
                }),
                AllOf(HasSubstr("deterministic"), HasSubstr("algorithms no")));
  });
}

TEST(Determinism, WorkersThatShareADeviceAreNamedOnce) {
  on_device_workers(3, Held::kSideStreams, [](const Job& job) {
    LogCapture log;
    auto model = mlp();
    model->to(local_device(job));
    const DataParallel parallel(job, *model);
    const std::string line("ranks 0 2 share device test:0 of host 0");
    EXPECT_EQ(log.count(line), job.rank() == 0 ? 1 : 0);
  });
}

TEST(Determinism, OnAGpuItsNameIsCompared) {
  on_workers(1, [](const Job&) {
    load_stand_in_driver(false);
    const auto facts = device_facts({torch::kCUDA, 1});
    EXPECT_THAT(facts, ::testing::IsSupersetOf(std::vector<std::pair<std::string, std::string>>{
                           {"device", "cuda"},
                           {"GPU", "Stand-in 1, 101 multiprocessors"},
                           {"CUDA of the driver", "13000"}}));
  });
}

TEST(Determinism, OfProductsOnAGpuNeedsItsVariable) {
  on_workers(1, [](const Job&) {
    ::setenv(kCublasWorkspace, ":4096:8", 1);
    require_deterministic({torch::kCUDA, 0}, "m");
    ::setenv(kCublasWorkspace, ":0:0", 1);
    EXPECT_THAT(text_of<Unsupported>([] {
                  require_deterministic({torch::kCUDA, 0}, "m");
                }),
                AllOf(HasSubstr("\"m\" is on cuda:0"), HasSubstr("CUBLAS_WORKSPACE_CONFIG"),
                      HasSubstr("deterministic = false")));
  });
}

}  // namespace
}  // namespace tutti::test::determinism_cases
