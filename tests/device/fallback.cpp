// Every operator of the test device that has no kernel of its own: the CPU's, launched.

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "device/launch.h"
#include "device/streams.h"

namespace tutti::test_device {
namespace {

using c10::IValue;
using Stack = torch::jit::Stack;

/// The argument with `change` of each tensor in it, in order.
template <class Change>
IValue mapped(const IValue& value, const Change& change) {
  if (value.isTensor())
    return value.toTensor().defined() ? IValue(change(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? change(tensor) : tensor);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor && tensor->defined() ? std::optional(change(*tensor)) : tensor);
    }
    return list;
  }
  return value;
}

/// An operator and its arguments without their tensors: queued work keeps none of the device's
/// alive.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const Stack& arguments, Tensors& tensors) : op_(op) {
    const auto hole = at::empty({0}, at::kCPU);
    for (const auto& argument : arguments) {
      arguments_.push_back(mapped(argument, [&](const at::Tensor& tensor) {
        tensors.push_back(tensor);
        wrapped_.push_back(tensor.unsafeGetTensorImpl()->is_wrapped_number());
        return hole;
      }));
    }
  }

  /// The generator that it draws from; undefined for one that draws nothing.
  at::Generator generator(c10::DeviceIndex device) const {
    const auto at = generator_argument();
    if (!at) return {};
    if (arguments_[*at].isNone()) return generator_of(device);
    const auto given = arguments_[*at].toGenerator();
    TORCH_CHECK(given.device().type() == kType, "Expected a generator of the test device, not of ",
                given.device());
    return given;
  }

  /// The results of the CPU's kernel.
  Stack run(const Tensors& tensors, const at::Generator& generator) const {
    Stack stack;
    std::size_t next = 0;
    // A number that decides no type, as in tensor * 0.3, stays one.
    const auto put = [&](const at::Tensor&) {
      const auto& tensor = tensors[next];
      if (wrapped_[next++]) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
      return tensor;
    };
    for (const auto& argument : arguments_) {
      stack.push_back(argument.isDevice() ? IValue(c10::Device(at::kCPU)) : mapped(argument, put));
    }
    if (generator.defined()) stack[*generator_argument()] = generator;
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return stack;
  }

  /// Which argument a result is, by the schema; none: it is new.
  std::optional<std::size_t> written_argument(std::size_t result) const {
    const auto* const info = op_.schema().returns()[result].alias_info();
    if (info == nullptr || !info->isWrite()) return std::nullopt;
    const auto& arguments = op_.schema().arguments();
    for (std::size_t a = 0; a < arguments.size(); ++a) {
      const auto* const of = arguments[a].alias_info();
      if (of != nullptr && of->beforeSets() == info->beforeSets()) return a;
    }
    return std::nullopt;
  }

  /// Visits those of its results that are new.
  template <class Visit>
  void each_new(const Stack& results, const Visit& visit) const {
    for (std::size_t r = 0; r < results.size(); ++r) {
      if (!written_argument(r)) visit(results[r]);
    }
  }

  /// Whether values decide on the sizes of its results, or it has others than tensors.
  bool must_wait() const {
    if (op_.hasTag(at::Tag::dynamic_output_shape)) return true;
    for (const auto& result : op_.schema().returns()) {
      if (result.type()->kind() != c10::TypeKind::TensorType) return true;
    }
    return false;
  }

 private:
  std::optional<std::size_t> generator_argument() const {
    const auto& arguments = op_.schema().arguments();
    for (std::size_t a = 0; a < arguments.size(); ++a) {
      if (arguments[a].name() == "generator") return a;
    }
    return std::nullopt;
  }

  c10::OperatorHandle op_;
  Stack arguments_;
  std::vector<bool> wrapped_;  ///< by tensor
};

Stack launched(const Call& call, const Tensors& tensors, c10::DeviceIndex device) {
  const auto kernel = [call](const Tensors& inputs, const at::Generator& generator) {
    Tensors fresh;
    call.each_new(call.run(inputs, generator),
                  [&](const IValue& result) { fresh.push_back(result.toTensor()); });
    return fresh;
  };
  const auto fresh = launch(kernel, tensors, device, call.generator(device));
  return Stack(fresh.begin(), fresh.end());
}

/// From what the stream has done until now.
Stack computed(const Call& call, const Tensors& tensors, c10::DeviceIndex device) {
  count_waited();
  Streams::all().synchronize(current_stream(device));
  Tensors views;
  for (const auto& tensor : tensors) views.push_back(kernel_argument(tensor));
  auto generator = call.generator(device);
  const auto draws = generator.defined() ? generator.clone() : generator;
  Stack results;
  {
    const KernelState state;
    results = call.run(views, draws);
  }
  if (generator.defined()) generator.set_state(draws.get_state());
  Stack fresh;
  call.each_new(results, [&](const IValue& result) {
    fresh.push_back(mapped(result, [&](const at::Tensor& t) { return arriving(t, device); }));
  });
  return fresh;
}

/// Its new results.
Stack called(const Call& call, const Tensors& tensors, c10::DeviceIndex device) {
  if (!call.must_wait()) {
    try {
      return launched(call, tensors, device);
    } catch (const std::exception&) {  // of zeros alone, or of what computed() throws as well
    }
  }
  return computed(call, tensors, device);
}

c10::DeviceIndex device_of(const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    if (is_here(tensor)) return tensor.device().index();
  }
  return c10::impl::VirtualGuardImpl(kType).getDevice().index();
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  for (const auto& result : schema.returns()) {
    const auto* const info = result.alias_info();
    TORCH_CHECK_NOT_IMPLEMENTED(info == nullptr || info->isWrite(),
                                "the test device has no view by ", schema.name());
  }
  const auto count = schema.arguments().size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  Tensors tensors;
  const Call call(op, arguments, tensors);
  const auto fresh = called(call, tensors, device_of(tensors));
  auto next = fresh.begin();
  for (std::size_t r = 0; r < schema.returns().size(); ++r) {
    const auto argument = call.written_argument(r);
    stack->push_back(argument ? arguments[*argument] : *next++);
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
// Autocast casts nothing here: that it is on can be seen.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
// libtorch would have its result written by a kernel that resizes it on the way.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace
}  // namespace tutti::test_device
