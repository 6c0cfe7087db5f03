#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rules/rule_kernels.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include <cmath>
#include <cstddef>

#include "hwy/highway.h"
#include "kernels/rules/rule_kernels.h"

#ifndef TUTTI_KERNELS_RULES_SCALAR_
#define TUTTI_KERNELS_RULES_SCALAR_
namespace tutti::scalar {

// One element at a time is the value here.

/// Stands for T where vectors have a tag.
template <class T>
struct One {};

// clang-format off
template <class T> T Add(T a, T b) { return a + b; }
template <class T> T Sub(T a, T b) { return a - b; }
template <class T> T Mul(T a, T b) { return a * b; }
template <class T> T Div(T a, T b) { return a / b; }
template <class T> T Sqrt(T a) { return std::sqrt(a); }
template <class T> bool Lt(T a, T b) { return a < b; }
template <class T> bool Gt(T a, T b) { return a > b; }
template <class T> T IfThenElse(bool condition, T yes, T no) { return condition ? yes : no; }
template <class T> T Set(One<T>, T value) { return value; }
template <class T> T LoadU(One<T>, const T* from) { return *from; }
template <class T> void StoreU(T value, One<T>, T* to) { *to = value; }
// clang-format on

#include "kernels/rules/elements-inl.h"
// After elements-inl.h.
#include "kernels/rules/adagrad_formula-inl.h"
#include "kernels/rules/adam_formula-inl.h"
#include "kernels/rules/lion_formula-inl.h"
#include "kernels/rules/rms_prop_formula-inl.h"
#include "kernels/rules/sgd_formula-inl.h"

/// Elements from `begin` to the end.
template <class T, class Numbers>
void run(const Numbers& by, const UpdateTarget& target, std::size_t begin) {
  const Streams<T> in(target);
  const RuleOf<Numbers, T> rule(by);
  for (auto i = begin; i < in.count; ++i) rule(ElementsAt(One<T>(), in, i));
}

}  // namespace tutti::scalar
#endif

HWY_BEFORE_NAMESPACE();
namespace tutti {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Values are vectors here.
using hn::Add;
using hn::Div;
using hn::Gt;
using hn::IfThenElse;
using hn::LoadU;
using hn::Lt;
using hn::Mul;
using hn::Set;
using hn::Sqrt;
using hn::StoreU;
using hn::Sub;

#include "kernels/rules/elements-inl.h"
// After elements-inl.h.
#include "kernels/rules/adagrad_formula-inl.h"
#include "kernels/rules/adam_formula-inl.h"
#include "kernels/rules/lion_formula-inl.h"
#include "kernels/rules/rms_prop_formula-inl.h"
#include "kernels/rules/sgd_formula-inl.h"

/// Whole vectors, then one by one with the same operations.
template <class T, class Numbers>
void run_in(const Numbers& by, const UpdateTarget& target) {
  const Streams<T> in(target);
  const RuleOf<Numbers, T> rule(by);
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= in.count; i += lanes) rule(ElementsAt(d, in, i));
  if (i < in.count) scalar::run<T>(by, target, i);
}

UpdateKernel kernel_on_target(const RuleNumbers& any) {
  return std::visit(
      [](const auto& by) -> UpdateKernel {
        return [by](const UpdateTarget& target) {
          target.dtype == DType::float64 ? run_in<double>(by, target) : run_in<float>(by, target);
        };
      },
      any);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace tutti
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tutti {
HWY_EXPORT(kernel_on_target);

UpdateKernel kernel_of(const RuleNumbers& by) { return HWY_DYNAMIC_DISPATCH(kernel_on_target)(by); }

}  // namespace tutti
#endif
