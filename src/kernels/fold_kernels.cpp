#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fold_kernels.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/fold_kernels-inl.h"

#if HWY_ONCE
namespace tutti {
HWY_EXPORT(fold_kernels_on_target);

FoldKernels fold_kernels(DType source_type, DType result_type, Reduction reduction) {
  return HWY_DYNAMIC_DISPATCH(fold_kernels_on_target)(source_type, result_type, reduction);
}

}  // namespace tutti
#endif
