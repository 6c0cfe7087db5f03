// Factories that are told no device, after make_default(): their tensors are on the test device.

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <optional>

#include "device/streams.h"
#include "device/test_device.h"

namespace tutti::test_device {
namespace {

using c10::IValue;
using c10::impl::ExcludeDispatchKeyGuard;
using c10::impl::VirtualGuardImpl;
using Stack = torch::jit::Stack;

// libtorch has it for tests: a mode of a thread, and of the backwards that it starts.
constexpr auto kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

std::optional<c10::Device> chosen(std::optional<c10::Device> told,
                                  std::optional<c10::Layout> layout,
                                  std::optional<bool> is_pinned) {
  const bool is_plain = c10::layout_or_default(layout) == c10::kStrided;
  if (told || !is_plain || is_pinned.value_or(false)) return told;
  return VirtualGuardImpl(kType).getDevice();
}

at::Tensor default_empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> is_pinned, std::optional<at::MemoryFormat> format) {
  const ExcludeDispatchKeyGuard below(kMode);
  return at::empty(sizes, dtype, layout, chosen(device, layout, is_pinned), is_pinned, format);
}

at::Tensor default_empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                 std::optional<at::ScalarType> dtype,
                                 std::optional<c10::Layout> layout,
                                 std::optional<c10::Device> device, std::optional<bool> is_pinned) {
  const ExcludeDispatchKeyGuard below(kMode);
  return at::empty_strided(sizes, strides, dtype, layout, chosen(device, layout, is_pinned),
                           is_pinned);
}

/// What a generator of the CPU draws is drawn there and moved.
void drawn_by_generator(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto at = op.schema().argumentIndexWithName("device");
  const bool is_told =
      !torch::jit::peek(*stack, static_cast<std::size_t>(*at), arguments.size()).isNone();
  const ExcludeDispatchKeyGuard below(kMode);
  op.callBoxed(stack);
  if (!is_told) stack->back() = stack->back().toTensor().to(VirtualGuardImpl(kType).getDevice());
}

/// libtorch reads what it makes inside, by default on the CPU.
void made_on_the_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const ExcludeDispatchKeyGuard below(kMode);
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  library.impl("empty.memory_format", default_empty);
  library.impl("empty_strided", default_empty_strided);
  library.impl("repeat", torch::CppFunction::makeFromBoxedFunction<&made_on_the_cpu>());
  for (const auto* const name : {"rand.generator", "randn.generator", "randint.generator",
                                 "randint.low_generator", "randperm.generator"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&drawn_by_generator>());
  }
}

}  // namespace

void make_default(c10::Device device) {
  VirtualGuardImpl(kType).setDevice(device);
  c10::impl::tls_set_dispatch_key_included(kMode, true);
}

}  // namespace tutti::test_device
