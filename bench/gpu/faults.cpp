#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "device/host_update.h"
#include "device_option.h"
#include "gpu/parts.h"
#include "tutti/tutti.h"

namespace bench::gpu {
namespace {

using tutti::test_device::Fault;

constexpr int kSteps = 3;
constexpr int kLayers = 6;
constexpr std::int64_t kRows = 512;

constexpr std::pair<Fault, const char*> kFaults[] = {
    {Fault::kNone, "none"},
    {Fault::kNoGradientEvent, "the copy does not wait for its gradient"},
    {Fault::kUnrecordedGradient, "the copy waits for an event that nobody recorded"},
    {Fault::kNoRecordStream, "the gradient's memory is not kept for the copy"},
    {Fault::kNoHostWait, "the host does not wait for the copies"},
    {Fault::kUnrecordedHostWait, "the host waits for an event that nobody recorded"},
    {Fault::kNoParameterWait, "the next forward does not wait for the parameters"}};

/// The bytes of the parameters after some steps.
std::vector<torch::Tensor> trained(const Options& options, torch::Device device, Fault fault) {
  torch::manual_seed(7);
  torch::nn::Sequential model;
  for (int layer = 0; layer < kLayers; ++layer) {
    model->push_back(torch::nn::Linear(options.width, options.width));
    model->push_back(torch::nn::Tanh());
  }
  const auto x = torch::randn({kRows, options.width}).to(device);
  model->to(device);
  const auto parameters = model->parameters();
  tutti::test_device::train_by_host(parameters, fault, kSteps, [&](int step) {
    return model->forward(x + step).square().mean() * 100;
  });
  std::vector<torch::Tensor> values;
  for (const auto& parameter : parameters) values.push_back(parameter.detach().cpu());
  return values;
}

bool have_same_bytes(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(a, b, [](const torch::Tensor& x, const torch::Tensor& y) {
    return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
  });
}

}  // namespace

void faults(const Options& options) {
  const auto device = device_of(tutti::Job::join(), options.device);
  const auto expected = trained(options, device, Fault::kNone);
  for (const auto& [fault, text] : kFaults) {
    int wrong = 0;
    for (int run = 0; run < options.runs; ++run) {
      wrong += !have_same_bytes(trained(options, device, fault), expected);
    }
    tell("faults",
         {{"fault", text}, {"device", device.str()}, {"runs", options.runs}, {"wrong", wrong}});
  }
}

}  // namespace bench::gpu
