// Gradients leave by a side stream while backward runs, the host updates, parameters return by
// another stream: with all its waits this gives the CPU's bytes, and without one of them never.
// Each is left out a hundred times, beside threads that keep the processors busy.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include "device/device_fixture.h"

namespace tutti::test_device {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kRuns = 100;
constexpr int kSteps = 3;
constexpr float kRate = 0.1F;

enum class Fault {
  kNone,
  kNoGradientEvent,     ///< the side stream does not wait for the gradient
  kUnrecordedGradient,  ///< it waits for an event that nobody recorded
  kNoRecordStream,      ///< the gradient's memory is not kept for the side stream
  kNoHostWait,          ///< the host reads gradients before they have come
  kUnrecordedHostWait,  ///< it waits for an event that nobody recorded
  kNoParameterWait      ///< the next forward does not wait for the parameters
};

struct Net : torch::nn::Module {
  torch::nn::Linear a{register_module("a", torch::nn::Linear(12, 24))};
  torch::nn::Linear b{register_module("b", torch::nn::Linear(24, 24))};
  torch::nn::Linear c{register_module("c", torch::nn::Linear(24, 5))};
  Tensor forward(const Tensor& x) { return c(torch::tanh(b(torch::relu(a(x))))); }
};

/// Host memory that the device knows, a tensor for each of others.
class PinnedCopies {
 public:
  explicit PinnedCopies(const Tensors& like) {
    for (const auto& tensor : like) {
      tensors_.push_back(torch::full(tensor.sizes(), NAN));
      pin(tensors_.back().data_ptr(), tensor.nbytes());
    }
  }
  ~PinnedCopies() {
    for (const auto& tensor : tensors_) unpin(tensor.data_ptr());
  }
  PinnedCopies(const PinnedCopies&) = delete;
  PinnedCopies& operator=(const PinnedCopies&) = delete;
  Tensor& operator[](std::size_t p) { return tensors_[p]; }

 private:
  Tensors tensors_;
};

/// The update of a model on the device by the host.
class HostUpdate {
 public:
  HostUpdate(const Tensors& parameters, Fault fault)
      : parameters_(parameters), fault_(fault), gradients_(parameters), values_(parameters) {
    for (std::size_t p = 0; p < parameters_.size(); ++p) values_[p].copy_(parameters_[p].detach());
  }
  ~HostUpdate() { synchronize(); }
  HostUpdate(const HostUpdate&) = delete;
  HostUpdate& operator=(const HostUpdate&) = delete;

  /// In a hook.
  void take(std::size_t p, const Tensor& gradient) {
    c10::Event ready(device().type());
    if (fault_ != Fault::kUnrecordedGradient) ready.record(guard_.getStream(gradient.device()));
    if (fault_ != Fault::kNoGradientEvent) out_.wait(ready);
    {
      const c10::StreamGuard on(out_);
      gradients_[p].copy_(gradient, /*non_blocking=*/true);
    }
    if (fault_ != Fault::kNoRecordStream) {
      guard_.recordDataPtrOnStream(gradient.storage().data_ptr(), out_);
    }
  }

  /// After backward.
  void step() {
    c10::Event copied(device().type());
    if (fault_ != Fault::kUnrecordedHostWait) copied.record(out_);
    if (fault_ != Fault::kNoHostWait) copied.synchronize();
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < parameters_.size(); ++p) values_[p].sub_(gradients_[p] * kRate);
    const auto current = guard_.getStream(device());
    c10::Event read(device().type());
    read.record(current);
    back_.wait(read);
    {
      const c10::StreamGuard on(back_);
      for (std::size_t p = 0; p < parameters_.size(); ++p) parameters_[p].copy_(values_[p], true);
    }
    c10::Event there(device().type());
    there.record(back_);
    if (fault_ != Fault::kNoParameterWait) current.wait(there);
  }

 private:
  Tensors parameters_;
  Fault fault_;
  PinnedCopies gradients_;
  PinnedCopies values_;
  c10::impl::VirtualGuardImpl guard_{device().type()};
  c10::Stream out_ = guard_.getStreamFromGlobalPool(device());
  c10::Stream back_ = guard_.getStreamFromGlobalPool(device());
};

/// Takes a gradient before AccumulateGrad, and leaves it none.
struct Take : torch::autograd::FunctionPreHook {
  Take(HostUpdate& update, std::size_t p) : update(update), p(p) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& g) override {
    update.take(p, g[0]);
    return {Tensor()};
  }
  HostUpdate& update;
  std::size_t p;
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
    for (auto& parameter : net.parameters()) parameter.sub_(parameter.grad() * kRate);
  }
  return bytes_of(net.parameters());
}

std::vector<std::string> trained_on_device(const Data& data, Fault fault) {
  torch::manual_seed(7);
  Net net;
  net.to(device());
  const auto parameters = net.parameters();
  HostUpdate update(parameters, fault);
  std::vector<decltype(torch::autograd::impl::grad_accumulator(parameters[0]))> nodes;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    nodes.push_back(torch::autograd::impl::grad_accumulator(parameters[p]));
    nodes.back()->add_pre_hook(std::make_unique<Take>(update, p));
  }
  const auto before = counters();
  for (int s = 0; s < kSteps; ++s) {
    loss_of(net, data, s, device()).backward();
    update.step();
  }
  EXPECT_EQ(counters().unpinned, before.unpinned);
  EXPECT_EQ(counters().waited, before.waited);
  EXPECT_EQ(counters().blocked - before.blocked, 2 * kSteps);  // a step's inputs and targets
  synchronize();
  for (const auto& node : nodes) node->pre_hooks().clear();
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
