#pragma once

// As much of libtorch as partial.h, recompute.h, trainer.h and data_parallel.h of tutti name: read
// in a second, where the real one takes ten.

namespace at {

enum class ScalarType {};
inline constexpr ScalarType kFloat32{};

struct Tensor {};

struct Generator {};

struct IntArrayRef {};

}  // namespace at

namespace c10 {
template <class Target>
class intrusive_ptr;
}  // namespace c10

namespace torch {
using at::IntArrayRef;
using at::kFloat32;
using at::ScalarType;
using at::Tensor;
struct Device {};
namespace nn {
struct Module {
  virtual ~Module();
};
template <class Contained>
struct ModuleHolder {};
}  // namespace nn
}  // namespace torch
