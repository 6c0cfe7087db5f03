// What fails where a model is on a device: on one worker, on the device, or by what is not offered.

#include <chrono>
#include <stdexcept>
#include <thread>

#include "device_parallel/device_workers.h"

namespace tutti::test::device_failures_cases {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using test_device::Held;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace nn = torch::nn;

torch::Tensor loss_of(nn::Sequential& model, const Job& job, std::uint64_t seed) {
  const Batch batch(2 * job.size(), seed);
  const auto begin = 2 * job.rank();
  return torch::mse_loss(model->forward(batch.x.slice(0, begin, begin + 2).to(local_device(job))),
                         batch.y.slice(0, begin, begin + 2).to(local_device(job)));
}

struct Throws : torch::autograd::Function<Throws> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw std::runtime_error("no luck");
  }
};

/// Every worker's gradients of a step that works, against those of all rows on the CPU.
void expect_good_step(DataParallel& parallel, nn::Sequential& model, const Job& job,
                      std::uint64_t seed) {
  model->zero_grad();
  loss_of(model, job, seed).backward();
  auto alone = mlp();
  copy_parameters(*model, *alone);
  Batch(2 * job.size(), seed).loss(alone, 0, 2 * job.size()).backward();
  for (std::size_t p = 0; p < alone->parameters().size(); ++p) {
    EXPECT_TRUE(torch::allclose(model->parameters()[p].grad().cpu(), alone->parameters()[p].grad(),
                                1e-5, 1e-6))
        << p;
  }
  EXPECT_EQ(parallel.touched().size(), alone->parameters().size());
}

// findings: a backward that throws in a device's thread is heard of from that thread, or by the
// next call.
TEST(DeviceFailures, ABackwardThatThrowsIsThePeersFailureAtOnce) {
  for (const auto held : kProfiles) {
    on_device_workers(2, held, [](const Job& job) {
      auto model = mlp();
      model->to(local_device(job));
      DataParallel parallel(job, *model);
      for (int round = 0; round < 100; ++round) {
        const auto seed = static_cast<std::uint64_t>(round);
        model->zero_grad();
        if (job.rank() == 1) {
          const auto loss = loss_of(model, job, seed);
          EXPECT_THROW(Throws::apply(loss).backward(), std::runtime_error);
          // The gradients come after what throws: the step is this worker's to tell of.
          parallel.fail("no luck");
        } else {
          const auto begin = steady_clock::now();
          EXPECT_THROW(loss_of(model, job, seed).backward(), PeerFailed);
          EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(20));
        }
        if (round % 10 == 0) expect_good_step(parallel, model, job, seed);
      }
      expect_equal_everywhere(parallel.group(), *model);
    });
  }
}

TEST(DeviceFailures, OneInTheMidstOfABackwardDropsItsStepOnAll) {
  on_device_workers(3, Held::kDefaultStreams, [](const Job& job) {
    auto first = nn::Linear(6, 8);
    auto second = nn::Linear(8, 3);
    nn::Sequential model(first, second);
    model->to(local_device(job));
    DataParallel parallel(job, *model);
    for (int round = 0; round < 20; ++round) {
      model->zero_grad();
      const auto x = Batch(2, 1).x.to(local_device(job));
      if (job.rank() == 1) {
        // The second layer's gradients are on their way when it throws.
        const auto hidden = Throws::apply(first->forward(x));
        EXPECT_THROW(second->forward(hidden).sum().backward(), std::runtime_error);
      } else {
        EXPECT_THROW(model->forward(x).sum().backward(), PeerFailed);
      }
      model->zero_grad();
      model->forward(x).sum().backward();
      EXPECT_TRUE(torch::allclose(second->bias.grad().cpu(), torch::full({3}, 2.0F)));
    }
  });
}

TEST(DeviceFailures, ModelsThatDriftApartAreFoundByTheirParameter) {
  on_device_workers(2, Held::kSideStreams, [](const Job& job) {
    auto model = mlp();
    model->to(local_device(job));
    DataParallel parallel(job, *model);
    loss_of(model, job, 1).backward();
    model->zero_grad();
    if (job.rank() == 1) {
      const torch::NoGradGuard no_grad;
      model->parameters()[2].add_(1);
    }
    EXPECT_THAT(text_of<Mismatch>([&] { loss_of(model, job, 2).backward(); }),
                HasSubstr("parameter \"2.weight\" of rank 1 differs from that of rank 0"));
  });
}

TEST(DeviceFailures, WorkersOnDifferentKindsOfDevicesDoNotTrainTogether) {
  on_device_workers(2, Held::kSideStreams, [](const Job& job) {
    auto model = mlp();
    if (job.rank() == 1) model->to(local_device(job));
    EXPECT_THAT(text_of<Mismatch>([&] { DataParallel parallel(job, *model); }),
                AllOf(HasSubstr("device"), HasSubstr("cpu"), HasSubstr("test")));
  });
}

// The gradient of a table's row that is not there fails late, on the device.
TEST(DeviceFailures, OfTheDeviceNameWorkerAndWhatItSays) {
  on_workers(2, [](const Job& job) {
    test_device::register_device();
    nn::Embedding table(4, 3);
    table->to(local_device(job));
    DataParallel parallel(job, *table);
    const auto rows = torch::tensor({0, job.rank() == 1 ? 7 : 1}).to(local_device(job));
    const auto run = [&] { table->forward(rows).sum().backward(); };
    if (job.rank() == 1) {
      EXPECT_THAT(text_of<DeviceFailed>(run),
                  AllOf(HasSubstr("rank 1: test:0 has failed, here or before"),
                        HasSubstr("index out of range")));
    } else {
      EXPECT_THAT(text_of<PeerFailed>(run),
                  HasSubstr("rank 1 failed: its backward threw an exception"));
    }
  });
}

TEST(DeviceFailures, MemoryThatIsMissingIsNamedWithWhatIsThere) {
  on_workers(2, [](const Job& job) {
    test_device::register_device();
    auto model = nn::Linear(1 << 10, 1 << 10);
    model->to(local_device(job));
    if (job.rank() == 1) test_device::leave_memory(std::size_t{1} << 20);
    const auto run = [&] {
      DataParallel parallel(job, *model, {.deadline = std::chrono::milliseconds(60000)});
      model->forward(torch::ones({1, 1 << 10}).to(local_device(job))).sum().backward();
    };
    if (job.rank() == 1) {
      EXPECT_THAT(
          text_of<OutOfMemory>(run),
          AllOf(HasSubstr("rank 1: test:0: the test device is out of memory: 4194304 bytes"),
                HasSubstr("beside its parameters, the gradients of \"model\" take 4.00 MiB")));
    } else {
      EXPECT_THAT(text_of<PeerFailed>(run), HasSubstr("rank 1 failed"));
    }
  });
}

TEST(DeviceFailures, WhatIsNotOfferedIsRefusedByName) {
  on_device_workers(1, Held::kSideStreams, [](const Job& job) {
    const auto text_with = [&](const DataParallelOptions& options) {
      auto model = mlp();
      model->to(local_device(job));
      return text_of<Unsupported>([&] { DataParallel parallel(job, *model, options); });
    };
    EXPECT_THAT(text_with({.compression = {.codec = half_codec()}}),
                HasSubstr("test:0, where codecs are not offered"));
    EXPECT_THAT(text_with({.row_sparse = [](std::string_view) { return true; }}),
                HasSubstr("row-sparse gradients are not offered"));
    auto apart = mlp();
    apart->to(local_device(job));
    apart[2]->as<nn::Linear>()->to(test_device::device(1));
    EXPECT_THAT(text_of<Unsupported>([&] { DataParallel parallel(job, *apart); }),
                HasSubstr("all of a model is on one device"));
  });
}

}  // namespace
}  // namespace tutti::test::device_failures_cases
