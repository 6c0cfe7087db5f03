#pragma once

// Memory that Tutti allocates as a tensor: the one place where an address becomes one.
//
// Pure functions.

#include <torch/torch.h>

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

namespace tutti {

/// Elements of `type` that begin at `at`; without strides, which are in elements, contiguous. A
/// copy of `owner` lives as long as the tensor's storage; without one the caller keeps the memory.
template <class Owner = std::nullptr_t>
torch::Tensor tensor_at(void* at, torch::IntArrayRef sizes, at::OptionalIntArrayRef strides,
                        torch::ScalarType type, Owner owner = nullptr) {
  std::function<void(void*)> release;
  if constexpr (!std::is_null_pointer_v<Owner>) release = [owner = std::move(owner)](void*) {};
  return at::for_blob(at, sizes).strides(strides).deleter(release).options(type).make_tensor();
}

/// The same in the sizes and strides of `like`.
template <class Owner = std::nullptr_t>
torch::Tensor tensor_at(void* at, const torch::Tensor& like, torch::ScalarType type,
                        Owner owner = nullptr) {
  return tensor_at(at, like.sizes(), like.strides(), type, std::move(owner));
}

}  // namespace tutti
