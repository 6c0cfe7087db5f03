#pragma once

// How operators reach the test device's streams.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace tutti::test_device {

using Tensors = std::vector<at::Tensor>;

/// What an operator does, on tensors of the CPU: new tensors from given ones, some of which may be
/// undefined. Draws come from the generator, which only random operators have.
using Kernel = std::function<Tensors(const Tensors& inputs, const at::Generator& generator)>;

bool is_here(const at::Tensor& tensor);

/// Its elements where kernels have access. It keeps no memory alive, as an address in a kernel
/// of CUDA does not.
at::Tensor kernel_view(const at::Tensor& tensor);

/// What a kernel is given for a tensor, which may be undefined: of the CPU only scalars, by value.
at::Tensor kernel_argument(const at::Tensor& tensor);

/// Queues the kernel on the current stream and returns its results to be. Their sizes, and those
/// that inputs take by being written, are those of a run on zeros, now: nothing waits. Throws what
/// that run throws.
Tensors launch(const Kernel& kernel, const Tensors& inputs, c10::DeviceIndex device,
               const at::Generator& generator = {});

/// On the device, later on the current stream, what was computed on the CPU.
at::Tensor arriving(const at::Tensor& computed, c10::DeviceIndex device);

at::Generator generator_of(c10::DeviceIndex device);

void count_waited();
/// An operator that rounds otherwise than the CPU's.
void count_own();
/// A copy that waited for its stream.
void count_blocked(bool is_unpinned);

}  // namespace tutti::test_device
