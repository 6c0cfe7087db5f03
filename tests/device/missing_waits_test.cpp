// Gradients leave by a side stream while backward runs, the host updates, parameters return by
// another stream: with all its waits this gives the CPU's bytes, and without one of them never.
// Each is left out a hundred times, beside threads that keep the processors busy.

#include <atomic>
#include <thread>

#include "device/device_fixture.h"
#include "device/host_update.h"

namespace tutti::test_device {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kRuns = 100;
constexpr int kSteps = 3;

struct Net : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(12, 24))};
  torch::nn::Linear b{register_module("b", torch::nn::Linear(24, 24))};
  torch::nn::Linear c{register_module("c", torch::nn::Linear(24, 5))};
  Tensor forward(const Tensor& x) { return c(torch::tanh(b(torch::relu(a(x))))); }
};

struct Data {
  Tensors inputs, targets;
};
Data data() {
  torch::manual_seed(11);
  Data data;
  for (int s = 0; s < kSteps; ++s) {
    data.inputs.push_back(torch::randn({7, 12}));
    data.targets.push_back(torch::randint(5, {7}));
  }
  return data;
}

Tensor loss_of(Net& net, const Data& data, int step, c10::Device where) {
  const auto s = static_cast<std::size_t>(step);
  return torch::cross_entropy_loss(net.forward(data.inputs[s].to(where)),
                                   data.targets[s].to(where));
}

std::vector<std::string> trained_on_cpu(const Data& data) {
  torch::manual_seed(7);
  Net net;
  for (int s = 0; s < kSteps; ++s) {
    net.zero_grad();
    loss_of(net, data, s, torch::kCPU).backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.sub_(parameter.grad() * kHostRate);
  }
  return bytes_of(net.parameters());
}

std::vector<std::string> trained_on_device(const Data& data, Fault fault) {
  torch::manual_seed(7);
  Net net;
  net.to(device());
  const auto parameters = net.parameters();
  const auto before = counters();
  train_by_host(parameters, fault, kSteps,
                [&](int step) { return loss_of(net, data, step, device()); });
  EXPECT_EQ(counters().unpinned, before.unpinned);
  EXPECT_EQ(counters().waited, before.waited);
  const auto first_values = static_cast<std::int64_t>(parameters.size());
  EXPECT_EQ(counters().blocked - before.blocked, first_values + 2 * kSteps);  // inputs, targets
  return bytes_of(parameters);
}

class BusyLoops {
 public:
  BusyLoops() {
    for (auto& thread : threads_) {
      thread = std::thread([this] {
        while (!ends_) {
        }
      });
    }
  }
  ~BusyLoops() {
    ends_ = true;
    for (auto& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> ends_ = false;
  std::thread threads_[2];
};

class MissingWaits : public DeviceTest {
 protected:
  /// How many of so many runs give other bytes than the CPU's.
  static int wrong_runs(Fault fault, Held held) {
    const BusyLoops busy;
    const auto given = data();
    const auto expected = trained_on_cpu(given);
    hold(held);
    int wrong = 0;
    for (int run = 0; run < kRuns; ++run) wrong += trained_on_device(given, fault) != expected;
    return wrong;
  }
};

TEST_F(MissingWaits, none_gives_the_bytes_of_the_cpu) {
  for (const auto held : kProfiles) EXPECT_EQ(wrong_runs(Fault::kNone, held), 0);
}
TEST_F(MissingWaits, of_a_copy_for_its_gradient_where_default_streams_are_late) {
  EXPECT_EQ(wrong_runs(Fault::kNoGradientEvent, Held::kDefaultStreams), kRuns);
}
TEST_F(MissingWaits, of_a_copy_for_an_event_that_nobody_recorded_where_default_streams_are_late) {
  EXPECT_EQ(wrong_runs(Fault::kUnrecordedGradient, Held::kDefaultStreams), kRuns);
}
TEST_F(MissingWaits, of_the_gradients_memory_for_its_copy_where_side_streams_are_late) {
  EXPECT_EQ(wrong_runs(Fault::kNoRecordStream, Held::kSideStreams), kRuns);
}
TEST_F(MissingWaits, of_the_host_for_gradients_in_both) {
  for (const auto held : kProfiles) EXPECT_EQ(wrong_runs(Fault::kNoHostWait, held), kRuns);
}
TEST_F(MissingWaits, of_the_host_for_an_event_that_nobody_recorded_in_both) {
  for (const auto held : kProfiles) EXPECT_EQ(wrong_runs(Fault::kUnrecordedHostWait, held), kRuns);
}
TEST_F(MissingWaits, of_the_next_forward_for_parameters_where_side_streams_are_late) {
  EXPECT_EQ(wrong_runs(Fault::kNoParameterWait, Held::kSideStreams), kRuns);
}

}  // namespace
}  // namespace tutti::test_device
