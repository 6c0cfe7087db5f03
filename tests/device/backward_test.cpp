// Autograd treats the test device as a GPU.

#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>

#include "device/device_fixture.h"

namespace tutti::test_device {
namespace {

using at::Tensor;

struct Hook : torch::autograd::FunctionPreHook {
  explicit Hook(std::function<void(const Tensor&)> call) : call(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& g) override {
    call(g[0]);
    return g;
  }
  std::function<void(const Tensor&)> call;
};

using DeviceBackward = DeviceTest;

TEST_F(DeviceBackward, hooks_and_its_end_run_in_autograds_thread_on_the_nodes_stream) {
  const auto parameter = torch::ones({4}, device()).requires_grad_();
  const auto made_on = side_stream();
  std::thread::id hook_thread, end_thread;
  std::optional<c10::Stream> hook_stream;
  decltype(torch::autograd::impl::grad_accumulator(parameter)) node;
  {
    const c10::StreamGuard on(made_on);
    node = torch::autograd::impl::grad_accumulator(parameter);
  }
  node->add_pre_hook(std::make_unique<Hook>([&](const Tensor& gradient) {
    hook_thread = std::this_thread::get_id();
    hook_stream = guard().getStream(gradient.device());
    torch::autograd::Engine::get_default_engine().queue_callback(
        [&] { end_thread = std::this_thread::get_id(); });
  }));
  (parameter * 3).sum().backward();
  EXPECT_NE(hook_thread, std::thread::id());
  EXPECT_NE(hook_thread, std::this_thread::get_id());
  EXPECT_EQ(end_thread, hook_thread);
  EXPECT_EQ(hook_stream, made_on);
  EXPECT_EQ(parameter.grad().sum().item<float>(), 12);
}

struct HookError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST_F(DeviceBackward, an_exception_of_a_hook_keeps_its_type) {
  const auto parameter = torch::ones({4}, device()).requires_grad_();
  const auto node = torch::autograd::impl::grad_accumulator(parameter);
  node->add_pre_hook(std::make_unique<Hook>([](const Tensor&) { throw HookError("from a hook"); }));
  EXPECT_THROW((parameter * 3).sum().backward(), HookError);
  node->pre_hooks().clear();
  (parameter * 3).sum().backward();
  EXPECT_EQ(parameter.grad().sum().item<float>(), 12);
}

}  // namespace
}  // namespace tutti::test_device
