// Operators of the test device that compute nothing: making, viewing and copying tensors.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>

#include "device/launch.h"
#include "device/memory.h"
#include "device/streams.h"

namespace tutti::test_device {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout>, std::optional<c10::Device> device,
                               std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(sizes, &device_allocator(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

/// Without the bytes that were there, where it grows: what is resized is about to be written.
const at::Tensor& resize_(const at::Tensor& tensor, c10::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto elements = static_cast<std::size_t>(c10::multiply_integers(sizes));
  const auto bytes =
      (elements + static_cast<std::size_t>(tensor.storage_offset())) * tensor.element_size();
  if (bytes > storage->nbytes()) {
    storage->set_data_ptr_noswap(allocate(bytes, tensor.device().index()));
    storage->set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (format) tensor.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return tensor;
}

/// Modules go between CPU and device by set_data().
bool is_same_kind(const at::Tensor&, const at::Tensor&) { return true; }

at::Tensor copy_view(const at::Tensor& tensor) {
  if (!is_here(tensor)) return tensor.detach();
  auto view = kernel_view(tensor);
  view._set_neg(tensor.is_neg());
  if (tensor.is_complex()) view._set_conj(tensor.is_conj());
  return view;
}

bool is_pinned_whole(const at::Tensor& tensor) {
  const auto bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  return bytes == 0 || is_pinned(tensor.data_ptr(), bytes);
}

/// A copy runs on the current stream of its source; to another device, between what was queued on
/// the target's current stream and what will be.
void copy_within(const at::Tensor& from, const at::Tensor& to) {
  auto& streams = Streams::all();
  const auto leaves = current_stream(from.device().index());
  const auto arrives = current_stream(to.device().index());
  const bool is_far = from.device() != to.device();
  if (is_far) streams.order_after(leaves, streams.end_of(arrives));
  streams.push(leaves,
               [source = copy_view(from), target = copy_view(to)] { target.copy_(source); });
  if (is_far) streams.order_after(arrives, streams.end_of(leaves));
}

/// A tensor of the host lives until its copy has run, as libtorch's own pinned memory does beside
/// CUDA. What a program has pinned belongs to no tensor: its user waits.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (is_here(from) && is_here(to)) {
    copy_within(from, to);
    return to;
  }
  const auto& host = is_here(to) ? from : to;
  const auto stream = current_stream((is_here(to) ? to : from).device().index());
  Streams::all().push(stream,
                      [source = copy_view(from), target = copy_view(to)] { target.copy_(source); });
  if (non_blocking && is_pinned_whole(host)) return to;
  Streams::all().synchronize(stream);
  count_blocked(non_blocking);
  return to;
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  Streams::all().synchronize(current_stream(tensor.device().index()));
  return kernel_view(tensor).item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty_memory_format);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", TORCH_FN(at::cpu::as_strided));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("resize_", resize_);
  library.impl("_has_compatible_shallow_copy_type", is_same_kind);
  library.impl("_copy_from", copy_from);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
}
// copy_from() heeds these bits; libtorch would clone, which is a copy.
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace tutti::test_device
