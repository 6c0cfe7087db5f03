#include "device/launch.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "device/memory.h"
#include "device/streams.h"

namespace tutti::test_device {
namespace {

std::atomic<std::int64_t> waited, blocked, unpinned, own;

/// Zeros on the CPU in the place of values that are not known yet.
at::Tensor stand_in(const at::Tensor& tensor) {
  if (!is_here(tensor)) return kernel_argument(tensor);
  const auto bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  const auto elements = static_cast<std::int64_t>(bytes / tensor.element_size());
  return at::zeros({elements}, at::TensorOptions(tensor.scalar_type()).device(at::kCPU))
      .as_strided(tensor.sizes(), tensor.strides());
}

/// The results, and the generator for the run on values: as it was. It is advanced here already.
std::pair<Tensors, at::Generator> run_on_zeros(const Kernel& kernel, const Tensors& inputs,
                                               at::Generator generator) {
  const KernelState state;
  if (!generator.defined()) return {kernel(inputs, generator), generator};
  const std::lock_guard lock(generator.mutex());
  const auto before = generator.clone();
  const auto after = generator.clone();
  auto results = kernel(inputs, after);
  generator.set_state(after.get_state());
  return {std::move(results), before};
}

}  // namespace

bool is_here(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

at::Tensor kernel_view(const at::Tensor& tensor) {
  void* const at = tensor.numel() > 0 ? kernel_address(tensor.data_ptr()) : nullptr;
  return at::from_blob(at, tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

at::Tensor kernel_argument(const at::Tensor& tensor) {
  if (is_here(tensor)) return kernel_view(tensor);
  TORCH_CHECK(!tensor.defined() || tensor.dim() == 0,
              "Expected all tensors to be on the same device, but one of sizes ", tensor.sizes(),
              " is on ", tensor.device(), " and others are on the test device");
  return tensor.defined() ? tensor.detach().clone() : tensor;
}

Tensors launch(const Kernel& kernel, const Tensors& inputs, c10::DeviceIndex device,
               const at::Generator& generator) {
  Tensors zeros;
  for (const auto& input : inputs) zeros.push_back(stand_in(input));
  const auto [shapes, draws] = run_on_zeros(kernel, zeros, generator);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (zeros[i].defined() && zeros[i].sizes() != inputs[i].sizes()) {
      inputs[i].resize_(zeros[i].sizes());
    }
  }
  Tensors results;
  Tensors targets;
  for (const auto& shape : shapes) {
    results.push_back(shape.defined()
                          ? at::empty_strided(shape.sizes(), shape.strides(),
                                              shape.options().device(c10::Device(kType, device)))
                          : at::Tensor());
    targets.push_back(shape.defined() ? kernel_view(results.back()) : at::Tensor());
  }
  Tensors arguments;
  for (const auto& input : inputs) arguments.push_back(kernel_argument(input));
  Streams::all().push(current_stream(device), [kernel, arguments, targets, draws = draws] {
    const auto computed = kernel(arguments, draws);
    for (std::size_t r = 0; r < targets.size(); ++r) {
      if (targets[r].defined()) targets[r].copy_(computed[r]);
    }
  });
  return results;
}

at::Tensor arriving(const at::Tensor& computed, c10::DeviceIndex device) {
  const auto give = [computed](const Tensors&, const at::Generator&) { return Tensors{computed}; };
  return launch(give, {}, device)[0];
}

at::Generator generator_of(c10::DeviceIndex device) {
  return at::globalContext().defaultGenerator({kType, device});
}

void count_waited() { ++waited; }
void count_own() { ++own; }
void count_blocked(bool is_unpinned) {
  ++blocked;
  if (is_unpinned) ++unpinned;
}
Counters counters() { return {Streams::all().ran(), waited, blocked, unpinned, own}; }

}  // namespace tutti::test_device
