// AveragedParallel of a model on a device: the CPU's bytes.

#include "device_parallel/device_workers.h"

namespace tutti::test::device_averaging_cases {
namespace {

/// A model with statistics, and with parameters of 16, 32 and 64 bits where the policy takes them,
/// that each worker moves in its own way for some steps. The device is behind all the time.
std::string trained_with(const Job& job, c10::Device where, const AveragingPolicyPointer& policy) {
  torch::manual_seed(1 + job.rank());
  auto model = torch::nn::Sequential(torch::nn::Linear(6, 17), torch::nn::BatchNorm1d(17),
                                     torch::nn::Linear(17, 3));
  if (!policy->sends_int8()) {
    model[2]->to(torch::kBFloat16);
    model[1]->to(torch::kFloat64);
  }
  model->to(where);
  AveragedParallel parallel(job, *model, policy, {.fusion = 60});
  std::string bytes;
  std::size_t copied = 0;
  for (int step = 1; step <= 7; ++step) {
    // What an optimizer would do, in operations that round alike everywhere.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      const auto change = torch::full(parameter.sizes(), 0.25 * (job.rank() + 1) / step,
                                      parameter.options().requires_grad(false));
      parameter.add_(parameter * change).add_(change);
    }
    model->named_buffers()["1.running_mean"].add_(job.rank() + step);
    parallel.average_parameters(step);
    for (const auto& parameter : model->parameters()) bytes += bytes_of(parameter);
    for (const auto& buffer : model->buffers()) bytes += bytes_of(buffer);
    copied += parallel.report().device_bytes;
  }
  EXPECT_EQ(copied > 0, !where.is_cpu());
  return bytes;
}

// promise: averaged_parallel.h#AveragedParallel
TEST(DeviceAveraging, HasTheBytesOfTheCpu) {
  const Diloco overlapped{.rate = 0.5, .warm_up = 0, .overlap = 2, .own = 0.25};
  for (const auto& policy :
       {local_sgd(2), partial_update(), block_momentum(2, 0, {.momentum = 0.5}),
        diloco(3, overlapped), diloco(2, {.fragments = 2, .warm_up = 1, .int8 = true})}) {
    SCOPED_TRACE(policy->name());
    expect_bytes_of_the_cpu(
        [&](const Job& job, c10::Device where) { return trained_with(job, where, policy); });
  }
}

}  // namespace
}  // namespace tutti::test::device_averaging_cases
