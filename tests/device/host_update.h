#pragma once

// The update of a model on a device by the host: gradients leave by a side stream while backward
// runs, parameters return by another, with all the waits that this needs, or without one of them.
// For any device of libtorch's.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

namespace tutti::test_device {

enum class Fault {
  kNone,
  kNoGradientEvent,     ///< the side stream does not wait for the gradient
  kUnrecordedGradient,  ///< it waits for an event that nobody recorded
  kNoRecordStream,      ///< the gradient's memory is not kept for the side stream
  kNoHostWait,          ///< the host reads gradients before they have come
  kUnrecordedHostWait,  ///< it waits for an event that nobody recorded
  kNoParameterWait      ///< the next forward does not wait for the parameters
};

inline constexpr float kHostRate = 0.1F;

class HostUpdate {
 public:
  HostUpdate(const std::vector<at::Tensor>& parameters, Fault fault)
      : parameters_(parameters), fault_(fault), device_(parameters[0].device()) {
    for (const auto& parameter : parameters_) {
      const auto pinned = torch::dtype(parameter.scalar_type()).pinned_memory(true);
      gradients_.push_back(torch::full(parameter.sizes(), NAN, pinned));
      values_.push_back(torch::empty(parameter.sizes(), pinned));
      values_.back().copy_(parameter.detach());
    }
  }
  ~HostUpdate() {
    for (const auto& stream : {out_, back_, guard_.getStream(device_)}) stream.synchronize();
  }
  HostUpdate(const HostUpdate&) = delete;
  HostUpdate& operator=(const HostUpdate&) = delete;

  /// In a hook.
  void take(std::size_t p, const at::Tensor& gradient) {
    c10::Event ready(device_.type());
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
    c10::Event copied(device_.type());
    if (fault_ != Fault::kUnrecordedHostWait) copied.record(out_);
    if (fault_ != Fault::kNoHostWait) copied.synchronize();
    const torch::NoGradGuard no_grad;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      values_[p].sub_(gradients_[p] * kHostRate);
    }
    const auto current = guard_.getStream(device_);
    c10::Event read(device_.type());
    read.record(current);
    back_.wait(read);
    {
      const c10::StreamGuard on(back_);
      for (std::size_t p = 0; p < parameters_.size(); ++p) parameters_[p].copy_(values_[p], true);
    }
    c10::Event there(device_.type());
    there.record(back_);
    if (fault_ != Fault::kNoParameterWait) current.wait(there);
  }

 private:
  std::vector<at::Tensor> parameters_;
  Fault fault_;
  c10::Device device_;
  std::vector<at::Tensor> gradients_, values_;  ///< on the host, pinned
  c10::impl::VirtualGuardImpl guard_{device_.type()};
  c10::Stream out_ = guard_.getStreamFromGlobalPool(device_);
  c10::Stream back_ = guard_.getStreamFromGlobalPool(device_);
};

/// Takes a gradient before AccumulateGrad, and leaves it none.
struct TakeGradient : torch::autograd::FunctionPreHook {
  TakeGradient(HostUpdate& update, std::size_t p) : update(update), p(p) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& g) override {
    update.take(p, g[0]);
    return {at::Tensor()};
  }
  HostUpdate& update;
  std::size_t p;
};

/// Steps from the losses of `loss`; all work has ended when it returns.
inline void train_by_host(const std::vector<at::Tensor>& parameters, Fault fault, int steps,
                          const std::function<at::Tensor(int step)>& loss) {
  HostUpdate update(parameters, fault);
  std::vector<decltype(torch::autograd::impl::grad_accumulator(parameters[0]))> nodes;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    nodes.push_back(torch::autograd::impl::grad_accumulator(parameters[p]));
    nodes.back()->add_pre_hook(std::make_unique<TakeGradient>(update, p));
  }
  for (int step = 0; step < steps; ++step) {
    loss(step).backward();
    update.step();
  }
  for (const auto& node : nodes) node->pre_hooks().clear();
}

}  // namespace tutti::test_device
