#include "torch/model/gradient_hooks.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "base/log_line.h"
#include "tutti/error.h"

namespace tutti {

class ParameterHooks::Take : public torch::autograd::FunctionPreHook {
 public:
  Take(std::size_t index, std::weak_ptr<GradientSink> sink)
      : index_(index), sink_(std::move(sink)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    const auto sink = sink_.lock();
    if (!sink || !gradients[0].defined()) return gradients;
    sink->gradient(index_, gradients[0]);
    return {torch::Tensor()};
  }

 private:
  std::size_t index_;
  std::weak_ptr<GradientSink> sink_;
};

class ParameterHooks::Tripwire : public torch::autograd::PostAccumulateGradHook {
 public:
  Tripwire(std::size_t index, std::weak_ptr<GradientSink> sink)
      : index_(index), sink_(std::move(sink)) {}
  void operator()(const torch::Tensor&) override {
    if (const auto sink = sink_.lock()) sink->accumulated(index_);
  }
  std::shared_ptr<GradientSink> sink() const { return sink_.lock(); }

 private:
  std::size_t index_;
  std::weak_ptr<GradientSink> sink_;
};

/// Stays in the slot of a parameter whose gradients are no longer taken.
class ParameterHooks::Ended : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Ended(std::shared_ptr<EndedNotice> notice) : notice_(std::move(notice)) {}
  void operator()(const torch::Tensor&) override {
    if (!notice_->said.exchange(true)) log_warning(notice_->warning);
  }

 private:
  std::shared_ptr<EndedNotice> notice_;
};

void ParameterHooks::forget(const torch::Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) return;
  const auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter);
  if (dynamic_cast<const Ended*>(slot.get()) == nullptr) return;
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

std::shared_ptr<GradientSink> ParameterHooks::sink_of(const torch::Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  const auto* const tripwire =
      dynamic_cast<const Tripwire*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  return tripwire == nullptr ? nullptr : tripwire->sink();
}

void ParameterHooks::require_free(const torch::Tensor& parameter, const std::string& label) {
  // A tensor that never required a gradient has nothing of autograd's.
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) return;
  const auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter);
  if (slot == nullptr || dynamic_cast<const Ended*>(slot.get()) != nullptr) return;
  const bool wrapped = dynamic_cast<const Tripwire*>(slot.get()) != nullptr;
  throw InvalidArgument(
      fmt::format("{} {}", label,
                  wrapped ? "is wrapped by a DataParallel or a Trainer already; end that one first"
                          : "has a post-accumulate hook of its own, which Tutti "
                            "would replace: remove it first"));
}

ParameterHooks::ParameterHooks(torch::Tensor parameter, const std::string& label, std::size_t index,
                               std::weak_ptr<GradientSink> sink)
    : parameter_(std::move(parameter)), index_(index), sink_(std::move(sink)) {
  require_free(parameter_, label);
  auto tripwire = std::make_unique<Tripwire>(index_, sink_);
  tripwire_ = tripwire.get();
  torch::autograd::impl::set_post_acc_grad_hooks(parameter_, std::move(tripwire));
  attach();
}

ParameterHooks::~ParameterHooks() {
  if (slot_is_ours()) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        parameter_, notice_ ? std::make_unique<Ended>(notice_) : nullptr);
  }
  if (!node_) return;
  std::erase_if(node_->pre_hooks(),
                [](const auto& hook) { return dynamic_cast<const Take*>(hook.get()) != nullptr; });
}

void ParameterHooks::attach() {
  if (node_ || !parameter_.requires_grad()) return;
  node_ = torch::autograd::impl::grad_accumulator(parameter_);
  node_->add_pre_hook(std::make_unique<Take>(index_, sink_));
}

bool ParameterHooks::slot_is_ours() const {
  return torch::autograd::impl::post_acc_grad_hooks(parameter_).get() == tripwire_;
}

int current_backward() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace tutti
