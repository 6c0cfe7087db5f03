// Programs as they are written, on a device and on the CPU: with the same bytes.

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device_parallel/device_workers.h"

namespace tutti::test::device_programs_cases {
namespace {

std::string hashes_of(const std::vector<const torch::nn::Module*>& models) {
  std::string hashes;
  for (const auto* model : models) hashes += parameters_sha256(*model);
  return hashes;
}

torch::Tensor loss_of(torch::nn::Sequential& model, const Job& job, std::uint64_t step,
                      c10::Device where) {
  const Batch batch(3, step * 100 + static_cast<std::uint64_t>(job.rank()));
  return torch::mse_loss(model->forward(batch.x.to(where)), batch.y.to(where));
}

TEST(DevicePrograms, OfWhichSomeHaveMoreData) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(1);
    auto model = mlp();
    model->to(where);
    DataParallel parallel(job, *model);
    auto sgd = momentum_and_decay(model->parameters());
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (std::uint64_t step = 1; step <= 2 + static_cast<std::uint64_t>(job.rank()); ++step) {
        model->zero_grad();
        loss_of(model, job, step, where).backward();
        sgd.step();
      }
      parallel.join([&] { sgd.step(); });
    }
    expect_equal_everywhere(parallel.group(), *model);
    return hashes_of({model.get()});
  });
}

// Each backward reaches the parameters of both.
TEST(DevicePrograms, OfTwoModelsThatLearnFromEachOther) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(1);
    torch::nn::Sequential makes(torch::nn::Linear(6, 6), torch::nn::Tanh());
    torch::nn::Sequential judges(torch::nn::Linear(6, 5), torch::nn::Tanh(),
                                 torch::nn::Linear(5, 1));
    makes->to(where);
    judges->to(where);
    DataParallel first(job, *makes, {.name = "makes"});
    DataParallel second(job, *judges, {.name = "judges"});
    auto sgd_of_first = momentum_and_decay(makes->parameters());
    auto sgd_of_second = momentum_and_decay(judges->parameters());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const auto x = Batch(3, step * 100 + static_cast<std::uint64_t>(job.rank())).x.to(where);
      const auto made = makes->forward(x);
      judges->zero_grad();
      (judges->forward(made.detach()) - judges->forward(x)).mean().backward();
      sgd_of_second.step();
      makes->zero_grad();
      for (auto& parameter : judges->parameters()) parameter.requires_grad_(false);
      judges->zero_grad();
      judges->forward(made).mean().neg().backward();
      sgd_of_first.step();
      for (auto& parameter : judges->parameters()) parameter.requires_grad_(true);
    }
    return hashes_of({makes.get(), judges.get()});
  });
}

TEST(DevicePrograms, OfAModelOnTheDeviceAndOneOnTheCpu) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(1);
    auto there = mlp();
    auto here = mlp();
    there->to(where);
    DataParallel first(job, *there, {.name = "there"});
    DataParallel second(job, *here, {.name = "here"});
    auto sgd_of_first = momentum_and_decay(there->parameters());
    auto sgd_of_second = momentum_and_decay(here->parameters());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      there->zero_grad();
      here->zero_grad();
      loss_of(there, job, step, where).backward();
      loss_of(here, job, step, torch::kCPU).backward();
      sgd_of_first.step();
      sgd_of_second.step();
    }
    return hashes_of({there.get(), here.get()});
  });
}

// A whole loop under a stream of the program's.
TEST(DevicePrograms, UnderAnotherStream) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    std::optional<c10::StreamGuard> guard;
    if (!where.is_cpu()) {
      guard.emplace(c10::impl::VirtualGuardImpl(where.type()).getStreamFromGlobalPool(where));
    }
    torch::manual_seed(1);
    auto model = mlp();
    model->to(where);
    DataParallel parallel(job, *model);
    auto sgd = momentum_and_decay(model->parameters());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      model->zero_grad();
      loss_of(model, job, step, where).backward();
      sgd.step();
    }
    return hashes_of({model.get()});
  });
}

// Steps on streams of their own, which do not wait for each other's sums, and nobody reads those
// until all have come. Both ways lead through the host's copies.
TEST(DevicePrograms, WhoseStepsAreOnDifferentStreams) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(1);
    auto model = mlp();
    model->to(where);
    if (!where.is_cpu()) test_device::refuse_registration(true);
    DataParallel parallel(job, *model, {.fusion = 1, .first_fusion = 1});
    std::vector<torch::Tensor> kept;
    for (std::uint64_t step = 1; step <= 5; ++step) {
      std::optional<c10::StreamGuard> guard;
      if (!where.is_cpu()) {
        guard.emplace(c10::impl::VirtualGuardImpl(where.type()).getStreamFromGlobalPool(where));
      }
      model->zero_grad();
      loss_of(model, job, step, where).backward();
      for (const auto& parameter : model->parameters()) kept.push_back(parameter.grad());
    }
    if (!where.is_cpu()) test_device::synchronize();
    std::string bytes;
    for (const auto& gradient : kept) bytes += bytes_of(gradient);
    return bytes;
  });
}

// What backward gave is read, changed and used by the next operation, without a wait.
TEST(DevicePrograms, ThatClipBySumsOfTheirOwn) {
  expect_bytes_of_the_cpu([](const Job& job, c10::Device where) {
    torch::manual_seed(1);
    auto model = mlp();
    model->to(where);
    DataParallel parallel(job, *model);
    auto sgd = momentum_and_decay(model->parameters());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      model->zero_grad();
      auto loss = loss_of(model, job, step, where);
      loss.backward();
      auto mine = (loss.detach() * 2).reshape({1});
      all_reduce(parallel.group(), mine, Reduction::max);
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.grad().clamp_(-0.125, 0.125).div_(mine);
      sgd.step();
    }
    return hashes_of({model.get()});
  });
}

}  // namespace
}  // namespace tutti::test::device_programs_cases
